// A session with Centrifugo's SDK, driven by a test, the same in Node and in a page. It reports events
// through `emit` and runs the methods passed to `call`.
globalThis.makeSession = function (Centrifuge, endpoint, options, emit) {
  const binary = options.protobuf === true;
  const pack = (value) => binary ? new TextEncoder().encode(JSON.stringify(value)) : value;
  const unpack = (value) => value instanceof Uint8Array ? JSON.parse(new TextDecoder().decode(value)) : value;
  // Only the socket knows the extensions that it agreed on with the server.
  const Socket = options.client?.websocket ?? globalThis.WebSocket;
  class websocket extends Socket {
    constructor(...args) {
      super(...args);
      this.addEventListener('open', () => emit({event: 'socket', extensions: this.extensions}));
    }
  }
  const client = new Centrifuge(endpoint, {
    minReconnectDelay: 50, maxReconnectDelay: 300, timeout: 20000, ...options.client, websocket,
    ...(options.token === undefined ? {} : {getToken: async () => options.token}),
  });
  for (const name of ['connected', 'connecting', 'disconnected', 'error']) {
    client.on(name, (ctx) => emit({event: name, code: ctx.code ?? ctx.error?.code, transport: ctx.transport ?? null, client: ctx.client}));
  }
  const subscription = (channel) => {
    const known = client.getSubscription(channel);
    if (known) return known;
    const made = client.newSubscription(channel);
    made.on('publication', (ctx) => emit({event: 'publication', channel, offset: ctx.offset ?? 0, data: unpack(ctx.data)}));
    made.on('join', (ctx) => emit({event: 'join', channel, user: ctx.info.user}));
    made.on('leave', (ctx) => emit({event: 'leave', channel, user: ctx.info.user}));
    made.on('subscribed', (ctx) => emit({
      event: 'subscribed', channel, recovered: ctx.recovered, was_recovering: ctx.wasRecovering,
    }));
    made.on('unsubscribed', (ctx) => emit({event: 'unsubscribed', channel, code: ctx.code}));
    return made;
  };
  return {
    async call(method, {channel, data}) {
      switch (method) {
        case 'connect': client.connect(); return client.ready(20000);
        case 'disconnect': client.disconnect(); return null;
        case 'subscribe': subscription(channel).subscribe(); return subscription(channel).ready(20000);
        case 'unsubscribe': subscription(channel).unsubscribe(); return null;
        case 'publish': await subscription(channel).publish(pack(data)); return null;
        case 'presence': {
          const found = await subscription(channel).presence();
          return Object.values(found.clients).map((info) => info.user).sort();
        }
        case 'presence_stats': {
          const stats = await subscription(channel).presenceStats();
          return [stats.numClients, stats.numUsers];
        }
        case 'history': {
          const found = await subscription(channel).history({limit: 1000});
          return found.publications.map((one) => [one.offset, unpack(one.data)]);
        }
        case 'rpc': return unpack((await client.rpc(channel, pack(data))).data);
        default: throw new Error(`no such method: ${method}`);
      }
    },
  };
};
