package main

import "sync"

func customerFigures() []figure {
	with := func(each bool) side {
		return onSource(sync.OnceValues(func() (*subscribers, error) { return newSubscribers(each, false) }), (*subscribers).random)
	}
	return []figure{
		timeRatio("pipeline: 100,000 customers, IPv4 and IPv6, random hits, against one meter for all", 3, 2, with(true), with(false)),
	}
}
