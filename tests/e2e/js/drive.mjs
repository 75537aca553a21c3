// Sessions for the end-to-end tests: one request a line on standard input, one answer or event a line
// on standard output.
//
//   {"id": 1, "session": "ann", "method": "open", "endpoint": "ws://...", "options": {"protobuf": true, "token": "..."}}
//   {"id": 2, "session": "ann", "method": "connect"}
//
// Sessions run in this process, or, with `--browser CHROMIUM URL`, in a page of that origin in a
// headless Chromium.
import {mkdtempSync, rmSync} from 'node:fs';
import {createRequire} from 'node:module';
import {tmpdir} from 'node:os';
import {join} from 'node:path';
import {createInterface} from 'node:readline';
import {ARGUMENTS} from './browser.mjs';

const require = createRequire(import.meta.url);
const send = (value) => process.stdout.write(JSON.stringify(value) + '\n');

async function inThisProcess() {
  await import('./session.js');
  const json = (await import('centrifuge')).Centrifuge;
  const protobuf = (await import('centrifuge/build/protobuf')).Centrifuge;
  const {default: websocket} = await import('ws');
  const {EventSource: eventsource} = await import('eventsource');
  const sessions = new Map();
  return {
    call({session, method, ...params}) {
      if (method !== 'open') return sessions.get(session).call(method, params);
      const options = {...params.options, client: {...params.options.client, websocket, eventsource}};
      const emit = (event) => send({session, ...event});
      sessions.set(session, globalThis.makeSession(options.protobuf ? protobuf : json, params.endpoint, options, emit));
      return null;
    },
    close() {},
  };
}

async function inBrowser(executablePath, url) {
  const {chromium} = await import('playwright-core');
  const profile = mkdtempSync(join(tmpdir(), 'chromium-'));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath,
    headless: true,
    timeout: 60000,
    args: ARGUMENTS,
  });
  const page = await context.newPage();
  page.on('pageerror', (error) => send({event: 'page error', message: String(error)}));
  await page.exposeFunction('send', send);
  await page.goto(url);
  // Both bundles use the same global name, so each is stored under its own.
  const dist = join(require.resolve('centrifuge'), '..', '..', 'dist');
  await page.addScriptTag({path: join(dist, 'centrifuge.js')});
  await page.evaluate(() => { globalThis.JsonCentrifuge = globalThis.Centrifuge; });
  await page.addScriptTag({path: join(dist, 'centrifuge.protobuf.js')});
  await page.addScriptTag({path: new URL('./session.js', import.meta.url).pathname});
  await page.evaluate(() => { globalThis.sessions = new Map(); });
  return {
    call: (request) => page.evaluate(async ({session, method, ...params}) => {
      if (method !== 'open') return globalThis.sessions.get(session).call(method, params);
      const sdk = params.options.protobuf ? globalThis.Centrifuge : globalThis.JsonCentrifuge;
      const emit = (event) => globalThis.send({session, ...event});
      globalThis.sessions.set(session, globalThis.makeSession(sdk, params.endpoint, params.options, emit));
      return null;
    }, request),
    async close() {
      await context.close();
      rmSync(profile, {recursive: true, force: true});
    },
  };
}

const [flag, ...rest] = process.argv.slice(2);
const place = flag === '--browser' ? await inBrowser(...rest) : await inThisProcess();
send({event: 'ready'});
const pending = new Set();
for await (const line of createInterface({input: process.stdin})) {
  const {id, ...request} = JSON.parse(line);
  const work = (async () => place.call(request))().then(
    (result) => send({id, result: result ?? null}),
    (error) => send({id, error: {code: error.code ?? null, message: error.message ?? String(error)}}),
  ).finally(() => pending.delete(work));
  pending.add(work);
}
await place.close();
process.exit(0);
