package shared

import (
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Open returns a client for New, which connects when it is first used. The URL is one of
// go-redis:
//
//	redis://user:password@host:6379/0       one server, with TLS as rediss://
//	unix://user:password@/path/of/socket    one server
//	redis://host:6379?addr=host2:6379       a cluster, by any of its nodes
//	redis://host:26379?master_name=name&username=user&password=password
//	                                        a primary that Sentinels watch
//
// Errors do not contain the URL, because it may contain a password.
func Open(url string) (redis.UniversalClient, error) {
	query := ""
	if _, after, ok := strings.Cut(url, "?"); ok {
		query = "&" + after
	}
	switch {
	case strings.Contains(query, "&master_name="):
		o, err := redis.ParseFailoverURL(url)
		if err != nil {
			return nil, badURL(url, err)
		}
		o.ContextTimeoutEnabled, o.DialerRetries = true, 1
		return redis.NewFailoverClient(o), nil
	case strings.Contains(query, "&addr="):
		o, err := redis.ParseClusterURL(url)
		if err != nil {
			return nil, badURL(url, err)
		}
		o.ContextTimeoutEnabled, o.DialerRetries = true, 1
		o.ClusterStateReloadInterval = time.Second // it notices a failover only then; the default is a minute
		return redis.NewClusterClient(o), nil
	}
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, badURL(url, err)
	}
	o.ContextTimeoutEnabled, o.DialerRetries = true, 1
	return redis.NewClient(o), nil
}

// badURL describes the error in a URL. It leaves out details of one that may contain a password.
func badURL(url string, err error) error {
	why := "it cannot be parsed; in a user name or password, characters such as @ / : # % must be percent-encoded"
	if !strings.Contains(url, "@") && !strings.Contains(url, "password") {
		why = strings.TrimPrefix(err.Error(), "redis: ")
	}
	return fault("URL", "of the store is wrong: %s: want redis://user:password@host:port/database, or rediss:// with TLS", why)
}
