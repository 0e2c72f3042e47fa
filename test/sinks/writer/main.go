// Command writer is what bench-sinks-lab runs as a singleton, and reads the stores with; see package offer.
//
//	writer KIND [unfenced]   write to the sink of that kind at $SINK_ADDRESS, with $FENCING_TOKEN or without
//	writer prepare KIND      make what it needs there
//	writer list KIND LOG     print what is stored there
package main

import (
	"fmt"

	"github.com/singletonjob/operator/test/bench/sinks/offer"
)

func main() {
	offer.Main(func(t offer.Target) (offer.Sink, error) {
		switch t.Kind {
		case "postgres", "mariadb":
			return openSQL(t)
		case "http", "handlers":
			return openHTTP(t), nil
		case "kubernetes":
			return openKubernetes(t)
		case "etcd":
			return openEtcd(t)
		case "redis":
			return openRedis(t), nil
		case "nats":
			return openNATS(t)
		case "s3":
			return openS3(t), nil
		}
		return nil, fmt.Errorf("no sink %q", t.Kind)
	})
}
