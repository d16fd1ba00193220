package livetest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// prometheusAt is the address of Prometheus, in a network namespace of its own.
const prometheusAt = "127.0.0.1:9099"

// startPrometheus starts Prometheus with the rules of docs/monitoring, without their waiting times.
func (p *pair) startPrometheus(target string) {
	p.t.Helper()
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		p.t.Skip("needs prometheus: apt-get install prometheus")
	}
	rules, err := os.ReadFile("../../../../docs/monitoring/rules.yaml")
	if err != nil {
		p.t.Fatal(err)
	}
	dir := p.t.TempDir()
	rules = regexp.MustCompile(`(?m)^ +for: .*\n`).ReplaceAll(rules, nil)
	config := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s, scrape_timeout: 1s}
rule_files: [rules.yaml]
scrape_configs: [{job_name: shaper, static_configs: [{targets: [%q]}]}]
`, target)
	for name, text := range map[string][]byte{"rules.yaml": rules, "prometheus.yml": []byte(config)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	cmd := exec.Command(binary, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+prometheusAt)
	p.startCommand(cmd)
}

// askPrometheus returns the answer of Prometheus to a request.
func (p *pair) askPrometheus(path string) (text []byte, err error) {
	var conn net.Conn
	p.near.Do(func() { conn, err = net.Dial("tcp", prometheusAt) })
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	request, err := http.NewRequest(http.MethodGet, "http://"+prometheusAt+path, nil)
	if err != nil {
		return nil, err
	}
	request.Close = true
	if err := request.Write(conn); err != nil {
		return nil, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// alerts returns the names of the alerts that fire.
func (p *pair) alerts() (names []string, err error) {
	text, err := p.askPrometheus("/api/v1/alerts")
	if err != nil {
		return nil, err
	}
	var reply struct {
		Data struct {
			Alerts []struct {
				State               string
				Labels, Annotations map[string]string
			}
		}
	}
	err = json.Unmarshal(text, &reply)
	for _, a := range reply.Data.Alerts {
		if a.State == "firing" {
			names = append(names, a.Labels["alertname"])
		}
		if summary := a.Annotations["summary"]; strings.Contains(summary, "<no value>") {
			err = fmt.Errorf("the summary of %v lacks a label: %s", a.Labels, summary)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// awaitAlerts waits until just these alerts fire.
func (p *pair) awaitAlerts(want ...string) {
	p.t.Helper()
	eventually(p.t, func() error {
		got, err := p.alerts()
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("alerts %q, want %q", got, want)
		}
		return err
	})
}

// awaitUp waits until Prometheus has read the metrics, and evaluated the rules afterwards.
func (p *pair) awaitUp() {
	p.t.Helper()
	for range 2 {
		eventually(p.t, func() error {
			text, err := p.askPrometheus("/api/v1/query?query=shaper_effective")
			if err == nil && !strings.Contains(string(text), `"interface":"v0"`) {
				err = fmt.Errorf("not read: %s", text)
			}
			return err
		})
		time.Sleep(2 * time.Second) // two evaluations
	}
}

// TestLiveAlerts runs Prometheus with the alerts of docs/monitoring beside a shaper. Another program
// displaces it, and then it ends: both fire their alerts, and no other ones.
func TestLiveAlerts(t *testing.T) {
	skipInVM(t)
	p := newQueuePair(t)
	policy := writePolicy(t, "classes: [{name: all, green: {queue: q}}]\n"+
		"queues: {q: {rate: 100mbit, limit: 50ms, fair: false}}\n")
	r := p.runShaper("--metrics", ":0", "--pacer", "htb", "--policy", policy)
	r.err.awaitMatch(t, `shaper: metrics at http://\S+/metrics\n`)
	_, target, _ := strings.Cut(r.err.String(), "metrics at http://")
	target, _, _ = strings.Cut(target, "/")
	p.startPrometheus(target)
	p.awaitUp()
	p.awaitAlerts()

	tc := func(args ...string) {
		t.Helper()
		p.near.Do(func() {
			if out, err := exec.Command("tc", args...).CombinedOutput(); err != nil {
				t.Fatalf("tc %v: %v: %s", args, err, out)
			}
		})
	}
	tc("qdisc", "replace", "dev", "v0", "root", "pfifo")
	p.awaitAlerts("ShaperNotEffective")
	r.sendSignal(syscall.SIGTERM)
	r.waitForExit()
	p.awaitAlerts("ShaperDown")
}

// TestLiveAlertsReload is TestLiveAlerts for a reload that fails, and a policy that waits for its
// confirmation.
func TestLiveAlertsReload(t *testing.T) {
	skipInVM(t)
	p := newPair(t)
	policy := writePolicy(t, "classes: [{name: a}]")
	r := p.runShaper("--metrics", ":0", "--policy", policy)
	r.err.awaitMatch(t, `shaper: metrics at http://\S+/metrics\n`)
	_, target, _ := strings.Cut(r.err.String(), "metrics at http://")
	target, _, _ = strings.Cut(target, "/")
	p.startPrometheus(target)
	p.awaitUp()
	p.awaitAlerts()
	rewriteFile(t, policy, "classes: [{name: a, meter: {}}]")
	r.sendSignal(syscall.SIGHUP)
	p.awaitAlerts("ShaperReloadFailed")
	rewriteFile(t, policy, "classes: [{name: b}]")
	r.reloadBySIGHUP()
	p.awaitAlerts()
	next := writePolicy(t, "classes: [{name: c}]")
	trial := p.startShaper("reload", "v0", "--policy", next, "--confirm", "10min")
	p.awaitAlerts("ShaperRollbackTimer")
	p.wantExit(0, "confirm", "v0")
	trial.wantExit(0)
	p.awaitAlerts()
	r.stopBySIGTERM()
}
