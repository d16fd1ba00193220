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
// An error does not hold the URL, because that may hold a password.
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
		o.ClusterStateReloadInterval = time.Second // by default a minute without a dead primary's slots
		return redis.NewClusterClient(o), nil
	}
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, badURL(url, err)
	}
	o.ContextTimeoutEnabled, o.DialerRetries = true, 1
	return redis.NewClient(o), nil
}

// badURL says what is wrong with a URL, unless it may hold a password.
func badURL(url string, err error) error {
	why := "it is not as go-redis reads it; the characters of a password that mean something in a URL, such as @ / : # %, must be percent-encoded"
	if !strings.Contains(url, "@") && !strings.Contains(url, "password") {
		why = strings.TrimPrefix(err.Error(), "redis: ")
	}
	return fault("URL", "of the store is wrong: %s: want redis://user:password@host:port/database, or rediss:// with TLS", why)
}
