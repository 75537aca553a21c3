// The peer that `bench/run live` measures beside Steadfast: centrifuge, the library that Centrifugo is made of, with its memory broker, a
// WebSocket door and the one call of the HTTP API that the load generator makes. Centrifugo itself adds tokens, namespaces and proxies to it,
// so what is measured here is the least that Centrifugo takes.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/centrifugal/centrifuge"
)

const (
	historySize = 1000
	historyTTL  = 10 * time.Minute
)

func history() centrifuge.PublishOption { return centrifuge.WithHistory(historySize, historyTTL) }

func main() {
	key := flag.String("key", "", "the API's key")
	flag.Parse()
	node, err := centrifuge.New(centrifuge.Config{ClientQueueMaxSize: 1 << 20, ClientChannelLimit: 128})
	if err != nil {
		log.Fatal(err)
	}
	node.OnConnecting(func(_ context.Context, _ centrifuge.ConnectEvent) (centrifuge.ConnectReply, error) {
		return centrifuge.ConnectReply{Credentials: &centrifuge.Credentials{}}, nil
	})
	node.OnConnect(func(client *centrifuge.Client) {
		client.OnSubscribe(func(_ centrifuge.SubscribeEvent, answer centrifuge.SubscribeCallback) {
			answer(centrifuge.SubscribeReply{Options: centrifuge.SubscribeOptions{EnableRecovery: true, EnablePositioning: true}}, nil)
		})
		client.OnPublish(func(event centrifuge.PublishEvent, answer centrifuge.PublishCallback) {
			result, err := node.Publish(event.Channel, event.Data, history(), centrifuge.WithClientInfo(event.ClientInfo))
			answer(centrifuge.PublishReply{Result: &result}, err)
		})
	})
	if err := node.Run(); err != nil {
		log.Fatal(err)
	}
	anywhere := func(*http.Request) bool { return true }
	http.Handle("/connection/websocket", centrifuge.NewWebsocketHandler(node, centrifuge.WebsocketConfig{CheckOrigin: anywhere, UseWriteBufferPool: true}))
	http.HandleFunc("/api/publish", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-API-Key") != *key {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		var request struct {
			Channel string          `json:"channel"`
			Data    json.RawMessage `json:"data"`
		}
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		result, err := node.Publish(request.Channel, request.Data, history())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"result":{"offset":%d,"epoch":%q}}`, result.Offset, result.Epoch)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("listening on %s\n", listener.Addr())
	log.Fatal(http.Serve(listener, nil))
}
