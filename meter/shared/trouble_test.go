package shared

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/a-seed-32e5a53f/shaper/meter/shared/lease"
	"github.com/a-seed-32e5a53f/shaper/meter/shared/storetest"
)

const secret = "s3cr3t/@word"

// checkWords checks that an error has all of these words, one line and no password.
func checkWords(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got %v: want %q", err, w)
		}
	}
	for _, w := range []string{"\n", "s3cr3t", "wrong-word"} {
		if strings.Contains(err.Error(), w) {
			t.Errorf("%q contains %q", err, w)
		}
	}
}

// checkFailure runs a host with a store that cannot serve. Start must return, the
// rescue share must apply, and the status must have the error.
func checkFailure(t *testing.T, server Server, words ...string) {
	t.Helper()
	g := &group{at: testClock()}
	terms := testTerms()
	terms.Hosts = 16
	a := g.newAgent(t, "host-0", terms, server)
	checkWords(t, a.Start(t.Context()), "budget b: ", server.String())
	if rate := g.meters[0].allowedRate(); rate != budget/10/16 {
		t.Errorf("the host may use %d, want %d", rate, budget/10/16)
	}
	st := a.Status()[0]
	if !st.Rescued || st.Heard || st.Err == nil || st.Rescue.Rate[0] != budget/10/16 ||
		st.Share != st.Rescue {
		t.Errorf("got %+v, want the rescue share", st)
	}
	if g.countEvents(0, Lost) != 1 || len(g.events) != 1 {
		t.Errorf("got %+v, want one Lost event", g.events)
	}
	// On a busy machine the first calls may get no answer.
	storetest.Until(t, words[0], func() bool {
		a.call(t.Context())
		st = a.Status()[0]
		return strings.Contains(st.Err.Error(), words[0])
	})
	checkWords(t, st.Err, words...)
}

func TestTrouble(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		options []storetest.Option
		server  func(t *testing.T, s *storetest.Server) Server
		says    []string
	}{
		{"no password", []storetest.Option{storetest.Password("s3cr3t")}, func(_ *testing.T, s *storetest.Server) Server {
			return Server{URL: "redis://" + s.Addr}
		}, []string{"requires a password", "password file"}},
		{"wrong password", []storetest.Option{storetest.Password("s3cr3t")}, func(_ *testing.T, s *storetest.Server) Server {
			return Server{URL: s.URLOf("", "wrong-word")}
		}, []string{"wrong user name or password", "check the user name and the password"}},
		{"no right to the script", []storetest.Option{storetest.User("a", "s3cr3t", "~*", "+@all", "-evalsha")}, func(_ *testing.T, s *storetest.Server) Server {
			return Server{URL: s.URLOf("a", "s3cr3t")}
		}, []string{"lacks a permission", "evalsha", "ACL SETUSER … ~{shaper:*}:lease +evalsha"}},
		{"no right of the script", []storetest.Option{storetest.User("a", "s3cr3t", "~*", "+@all", "-hset")}, func(_ *testing.T, s *storetest.Server) Server {
			return Server{URL: s.URLOf("a", "s3cr3t")}
		}, []string{"lacks a permission", "ACL SETUSER"}},
		{"no right to the key", []storetest.Option{storetest.User("a", "s3cr3t", "~other", "+@all")}, func(_ *testing.T, s *storetest.Server) Server {
			return Server{URL: s.URLOf("a", "s3cr3t")}
		}, []string{"lacks a permission", "~{shaper:*}:lease"}},
		{"full", []storetest.Option{storetest.MaxMemory("500kb")}, func(_ *testing.T, s *storetest.Server) Server {
			return Server{URL: s.URL()}
		}, []string{"memory is full", "maxmemory"}},
		{"too few replicas", []storetest.Option{storetest.Config("min-replicas-to-write 1")}, func(_ *testing.T, s *storetest.Server) Server {
			return Server{URL: s.URL()}
		}, []string{"too few replicas", "min-replicas-to-write"}},
		{"a replica", nil, func(t *testing.T, s *storetest.Server) Server {
			return Server{URL: storetest.Replica(t, s).URL()}
		}, []string{"read-only replica", "connect to the primary"}},
		{"unknown authority", []storetest.Option{storetest.TLS()}, func(_ *testing.T, s *storetest.Server) Server {
			return Server{URL: s.URL()}
		}, []string{"unknown authority", "ca-file"}},
		{"another name", []storetest.Option{storetest.TLS()}, func(_ *testing.T, s *storetest.Server) Server {
			return Server{URL: strings.Replace(s.URL(), "127.0.0.1", "localhost", 1), CAFile: s.CertFile()}
		}, []string{"certificate is for another name"}},
		{"no TLS", nil, func(_ *testing.T, s *storetest.Server) Server {
			return Server{URL: "rediss://" + s.Addr}
		}, []string{"does not speak TLS", "redis://"}},
		{"only TLS", []storetest.Option{storetest.TLS()}, func(_ *testing.T, s *storetest.Server) Server {
			return Server{URL: "redis://" + s.Addr}
		}, []string{"rediss://"}},
		{"certificate of the client", []storetest.Option{storetest.TLS()}, func(t *testing.T, s *storetest.Server) Server {
			noError(t, s.Client().ConfigSet(t.Context(), "tls-auth-clients", "yes").Err())
			return Server{URL: s.URL(), CAFile: s.CertFile()}
		}, []string{"cert-file and key-file"}},
		{"too many clients", []storetest.Option{storetest.Config("maxclients 1")}, func(t *testing.T, s *storetest.Server) Server {
			noError(t, s.Client().Ping(t.Context()).Err())
			return Server{URL: s.URL()}
		}, []string{"the server "}}, // the reply about too many clients may be lost
		{"stopped", nil, func(_ *testing.T, s *storetest.Server) Server {
			s.Pause()
			return Server{URL: s.URL()}
		}, []string{"no answer within 90ms"}},
		{"killed", nil, func(_ *testing.T, s *storetest.Server) Server {
			s.Kill()
			return Server{URL: s.URL()}
		}, []string{"connection refused", "check the URL"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			storetest.Each(t, func(t *testing.T, s *storetest.Server) {
				checkFailure(t, test.server(t, s), test.says...)
			}, test.options...)
		})
	}
	t.Run("no address", func(t *testing.T) {
		t.Parallel()
		checkFailure(t, Server{URL: "redis://name.invalid"}, "has no address", "check the URL")
	})
	t.Run("no socket", func(t *testing.T) {
		t.Parallel()
		checkFailure(t, Server{URL: "unix://" + t.TempDir() + "/socket"}, "no such file")
	})
}

// TestServers connects to a server by each kind of URL.
func TestServers(t *testing.T) {
	t.Parallel()
	file := write(t, secret+"\nsecond line\n")
	escaped := "s3cr3t%2F%40word"
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		for _, server := range []Server{
			{URL: "rediss://a:" + escaped + "@" + s.Addr, CAFile: s.CertFile()},
			{URL: "rediss://a@" + s.Addr + "/3", PasswordFile: file, CAFile: s.CertFile()},
			{URL: "rediss://a@" + s.Addr + "?db=2&skip_verify=true", PasswordFile: file},
		} {
			client, err := Open(server)
			noError(t, err)
			defer client.Close()
			if _, err := ListBudgets(t.Context(), client); err != nil {
				t.Errorf("%v: got %v, want nil", server, err)
			}
			if text := fmt.Sprintf("%v %+v %s", server, server, server); strings.Contains(text, "s3cr3t") ||
				!strings.Contains(text, s.Addr) {
				t.Errorf("String returned %q, want the address without the password", text)
			}
		}
	}, storetest.TLS(), storetest.User("a", secret))
}

func TestOpenErrors(t *testing.T) {
	t.Parallel()
	empty := write(t, "\ns3cr3t")
	for _, test := range []struct {
		server Server
		says   []string
	}{
		{Server{URL: "redis://u:s3cr3t/x@h"}, []string{"%2F"}},
		{Server{URL: "redis://u:s3cr3t%zz@h"}, []string{"cannot be parsed"}},
		{Server{URL: "h:6379:s3cr3t"}, []string{"redis://"}},
		{Server{URL: "http://u:s3cr3t@h"}, []string{"redis://"}},
		{Server{URL: "redis://u:s3cr3t@"}, []string{"no host"}},
		{Server{URL: "redis://u:s3cr3t@h/one"}, []string{`"one" is not a number`}},
		{Server{URL: "redis://u:s3cr3t@h?timeout=3"}, []string{`"timeout"`}},
		{Server{URL: "redis://u:s3cr3t@h?db=1&db=2"}, []string{`duplicate URL parameter "db"`}},
		{Server{URL: "redis://u:s3cr3t@h?addr=other"}, []string{"host:port"}},
		{Server{URL: "redis://u@h", PasswordFile: empty}, []string{"password-file", "first line", empty}},
		{Server{URL: "redis://u@h", PasswordFile: empty + "-none"}, []string{"password-file", "no such file"}},
		{Server{URL: "rediss://u:s3cr3t@h", CAFile: empty}, []string{"ca-file", "PEM"}},
		{Server{URL: "rediss://u:s3cr3t@h", CertFile: empty, KeyFile: empty}, []string{"cert-file"}},
	} {
		_, err := Open(test.server)
		checkWords(t, err, append(test.says, "open "+test.server.String())...)
	}
}

func TestAgentErrors(t *testing.T) {
	t.Parallel()
	client := openUnreachable(t)
	other, weight := testTerms(), testTerms()
	other.Interval *= 2
	weight.Weight = 0
	for _, test := range []struct {
		budgets []Budget
		says    string
	}{
		{nil, "needs a budget"},
		{[]Budget{{"a{b}", "h", testTerms()}}, "letters, digits"},
		{[]Budget{{"a\nb", "h", testTerms()}}, "letters, digits"},
		{[]Budget{{"a", "h\x1b[0m", testTerms()}}, "letters, digits"},
		{[]Budget{{"", "h", testTerms()}}, "1 to 128"},
		{[]Budget{{"a", "h", weight}}, "weight 0"},
		{[]Budget{{"a", "h", testTerms()}, {"b", "h", other}}, "200ms differs from 100ms"},
	} {
		_, err := NewAgent(client, test.budgets, AgentConfig{Clock: testClock})
		checkWords(t, err, test.says)
	}
}

// TestRights runs hosts of a user with only the documented rights, with
// replicas and without, and without the optional rights.
func TestRights(t *testing.T) {
	t.Parallel()
	without := func(right string) []string {
		return slices.DeleteFunc(strings.Fields(Rights), func(s string) bool { return s == right })
	}
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		url := func(user string) Server { return Server{URL: s.URLOf(user, "s3cr3t")} }
		g := joinHosts(t, 2, url("shaper"))
		g.awaitFull(t, "with all rights")
		for _, stop := range g.stop {
			stop()
		}
		g = joinHosts(t, 2, url("no-info"))
		g.awaitFull(t, "without info")
		g.awaitEvent(t, 0, Unguarded)
		storetest.Until(t, "unknown replicas and no error", func() bool {
			st := g.agents[0].Status()[0]
			return st.Replicas == -1 && st.Err == nil
		})
		for _, stop := range g.stop {
			stop()
		}
		storetest.Replica(t, s)
		g = joinHosts(t, 2, url("shaper"))
		g.awaitFull(t, "with a replica")
		storetest.Until(t, "one replica and no error", func() bool {
			st := g.agents[0].Status()[0]
			return st.Replicas == 1 && st.Err == nil
		})
		if g.countEvents(0, Unguarded) > 0 {
			t.Error("a host with a replica is unguarded")
		}
		a := g.addAgent(t, testTerms(), url("no-wait"))
		g.awaitEvent(t, 2, Lost)
		g.hasError(t, 2, "lacks a permission", "wait", s.Addr)
		if share := a.Status()[0].Share.Rate[0]; share > budget/10 {
			t.Errorf("without the right to WAIT: got a share of %d, want at most %d", share, budget/10)
		}
	}, storetest.User("shaper", "s3cr3t", strings.Fields(Rights)...),
		storetest.User("no-info", "s3cr3t", without("+info")...),
		storetest.User("no-wait", "s3cr3t", without("+wait")...))
}

// TestRefusals runs hosts that a store refuses, and hosts that disagree.
func TestRefusals(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		server := Server{URL: s.URL()}
		terms := testTerms()
		terms.Interval, terms.Deadline = 1e9, 900e6 // a call with thousands of hosts takes long
		g := &group{at: testClock()}
		for range 2 {
			g.addAgent(t, terms, server)
		}
		g.awaitFull(t, "two hosts")

		other := &group{at: testClock()}
		refused := func(name string, terms lease.Terms, want lease.Refusal, words ...string) {
			t.Helper()
			a := other.newAgent(t, name, terms, server)
			var err error
			storetest.Until(t, words[0], func() bool { // a call may be too late
				err = a.Start(t.Context())
				return a.Status()[0].Refused == want && err != nil && strings.Contains(err.Error(), words[0])
			})
			checkWords(t, err, append(words, "budget b", s.Addr)...)
			if st := a.Status()[0]; !st.Rescued || st.Share != st.Rescue {
				t.Errorf("got %+v, want the rescue share", st)
			}
		}
		refused("host-1", terms, lease.NameUsed, "host name host-1", "unique name")
		slow := terms
		slow.Interval *= 2
		refused("host-2", slow, lease.Interval, "another interval", "same interval on all hosts")

		small := terms
		small.Size.Rate[0] /= 2
		g.addAgent(t, small, server)
		if e := g.awaitEvent(t, 0, Disagreed); e.Status.Smallest != "host-2" || e.Status.Size != small.Size {
			t.Errorf("got %+v, want host-2 with the smaller size", e)
		}
		g.awaitSum(t, "the smallest size", full/2, budget/2)

		// Add hosts up to the maximum.
		state := s.Client().HGet(t.Context(), key("b"), "@host-0").Val()
		fields := make([]any, 0, 2*lease.MaxHosts)
		for i := range lease.MaxHosts - 3 {
			fields = append(fields, fmt.Sprint("@gone-", i), state)
		}
		const pack = "local s = cmsgpack.unpack(redis.call('HGET', KEYS[1], '=')) s[10] = 4096 redis.call('HSET', KEYS[1], '=', cmsgpack.pack(s), unpack(ARGV)) return 1"
		for some := range slices.Chunk(fields, 2000) {
			noError(t, s.Client().Eval(t.Context(), pack, []string{key("b")}, some...).Err())
		}
		refused("host-3", terms, lease.TooMany, "4096 hosts", "drop")
		if e := g.awaitEvent(t, 0, Crowded); !e.Status.Crowded {
			t.Errorf("got %+v, want Crowded", e)
		}
	})
}

// TestRestartedProcess restarts a process with its name before its lease has
// ended. That must not be reported as an error.
func TestRestartedProcess(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, s *storetest.Server) {
		g := joinHosts(t, 1, Server{URL: s.URL()})
		g.awaitFull(t, "alone")
		g.stop[0]()
		g.newAgent(t, "host-0", testTerms(), Server{URL: s.URL()})
		noError(t, g.meters[0].Apply(lease.Plan{})) // its process has ended
		g.starts(t, 1)
		if g.countEvents(1, Refused) > 0 {
			t.Errorf("got %+v, want no refusal of host 1", g.agents[1].Status())
		}
		noError(t, g.agents[1].Leave(t.Context()))
		if b, err := ShowBudget(t.Context(), s.Client(), "b"); err != nil || len(b.Hosts) > 0 ||
			b.Held != (lease.Amounts{}) {
			t.Errorf("after the last host left: got %+v, %v, want no hosts", b, err)
		}
	})
}

// TestRightsDocumented checks that the documentation lists the rights that
// users need. Other tests show that they suffice.
func TestRightsDocumented(t *testing.T) {
	for page, rights := range map[string][]string{
		"SHARING.md":   {Rights, "+scan +eval_ro"},
		"EMBEDDING.md": {rights, logRights},
	} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		plain := strings.Join(strings.Fields(strings.NewReplacer("\\\n", " ", "'", "").Replace(string(text))),
			" ")
		for _, r := range rights {
			if !strings.Contains(plain, r) {
				t.Errorf("%s: got no %q", page, r)
			}
		}
	}
}
