package metrics

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// monitoring is the folder of the files for Prometheus and Grafana.
const monitoring = "../../../../docs/monitoring/"

var (
	metricName = regexp.MustCompile(`\b(?:shaper|process|go)_[a-z_]+`)
	selector   = regexp.MustCompile(`\b((?:shaper|process|go|up)\w*)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	aggregated = regexp.MustCompile(`\b(by|without|on|ignoring)\s*\(([^)]*)\)`)
	template   = regexp.MustCompile(`\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}`)
)

// targetLabels are the labels that Prometheus adds.
var targetLabels = []string{"job", "instance"}

// unknownIn returns the metrics and labels that an expression, or a text with labels of its result, names
// wrongly.
func unknownIn(expr string, texts ...string) (faults []string) {
	all := targetLabels
	for _, name := range metricName.FindAllString(expr, -1) {
		f := familyOf(name)
		if f == nil {
			faults = append(faults, "there is no metric "+name)
			continue
		}
		all = with(all, f.labels...)
	}
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		of := targetLabels
		if f := familyOf(m[1]); f != nil {
			of = with(of, f.labels...)
		}
		for _, label := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(of, label[1]) {
				faults = append(faults, fmt.Sprintf("%s has no label %s", m[1], label[1]))
			}
		}
	}
	kept := all
	for _, m := range aggregated.FindAllStringSubmatch(expr, -1) {
		labels := strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' })
		for _, label := range labels {
			if !slices.Contains(all, label) {
				faults = append(faults, "no metric has the label "+label)
			}
		}
		if m[1] == "by" && strings.Count(expr, m[1]) == 1 {
			kept = labels
		}
	}
	for _, text := range texts {
		for _, m := range template.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(kept, m[1]) {
				faults = append(faults, fmt.Sprintf("the result has no label %s", m[1]))
			}
		}
	}
	return faults
}

func familyOf(name string) *metricFamily {
	for _, f := range families {
		if f.name == name {
			return f
		}
	}
	return nil
}

// TestUnknownIn checks that misspelt names and labels are found.
func TestUnknownIn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		expr, text string
		want       int
	}{
		{`rate(shaper_bytes_total{class="a"}[5m])`, "{{color}} {{ $labels.instance }}", 0},
		{`rate(shaper_byte_total[5m])`, "", 1},
		{`shaper_attached{class="a"} == 0`, "", 1},
		{`sum by (instance, class) (shaper_packets_total)`, "{{class}}", 0},
		{`sum by (instance, class) (shaper_packets_total)`, "{{color}}", 1},
		{`sum by (queue) (shaper_packets_total)`, "", 1},
		{`up{job="shaper"} == 0`, "{{ $labels.interface }}", 1},
	} {
		if got := unknownIn(test.expr, test.text); len(got) != test.want {
			t.Errorf("%s: %q: want %d faults", test.expr, got, test.want)
		}
	}
}

// alert is a rule of docs/monitoring/rules.yaml.
type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

// TestMonitoringRules compares the rules with the metrics, and runs their tests. Each alert says what to do,
// and is tested for a healthy shaper and for a fault.
func TestMonitoringRules(t *testing.T) {
	t.Parallel()
	var file struct {
		Groups []struct{ Rules []alert }
	}
	if err := yaml.Unmarshal([]byte(readMonitoring(t, "rules.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	tests, found := readMonitoring(t, "rules_test.yaml"), 0
	for _, name := range metricName.FindAllString(tests, -1) {
		if familyOf(name) == nil {
			t.Errorf("rules_test.yaml: there is no metric %s", name)
		}
	}
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			found++
			for _, fault := range unknownIn(r.Expr, r.Annotations["summary"]) {
				t.Errorf("%s: %s", r.Alert, fault)
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) ||
				!strings.ContainsAny(r.Annotations["summary"], ":;") {
				t.Errorf("%s: want a severity, and a summary with what to do: %v", r.Alert, r)
			}
			if n := strings.Count(tests, r.Alert); n < 2 {
				t.Errorf("%s is in rules_test.yaml %d times, want it for a healthy shaper and for a fault", r.Alert, n)
			}
		}
	}
	if found < 10 {
		t.Errorf("%d rules, want at least 10", found)
	}
	promtool(t, "check", "rules", monitoring+"rules.yaml")
	promtool(t, "test", "rules", monitoring+"rules_test.yaml")
}

func readMonitoring(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(monitoring + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// promtool runs Prometheus' own checks. Without promtool it skips the test.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("needs promtool: apt-get install prometheus")
	}
	if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// box is the place of a panel, in columns and rows.
type box struct{ X, Y, W, H int }

func (b box) overlaps(c box) bool {
	return b.X < c.X+c.W && c.X < b.X+b.W && b.Y < c.Y+c.H && c.Y < b.Y+b.H
}

// TestMonitoringDashboard compares the dashboard with the metrics, and checks what Grafana needs to import
// it.
func TestMonitoringDashboard(t *testing.T) {
	t.Parallel()
	type source struct{ Type, UID string }
	var d struct {
		UID, Title    string
		SchemaVersion int
		Templating    struct {
			List []struct {
				Name, Type, Definition string
			}
		}
		Annotations struct {
			List []struct{ Expr, TextFormat string }
		}
		Panels []struct {
			ID          int
			Type, Title string
			GridPos     box
			Datasource  source
			Targets     []struct {
				RefID, Expr, LegendFormat string
				Datasource                source
			}
		}
	}
	if err := json.Unmarshal([]byte(readMonitoring(t, "dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || d.Title == "" || d.SchemaVersion == 0 || len(d.Templating.List) == 0 ||
		d.Templating.List[0].Name != "datasource" || d.Templating.List[0].Type != "datasource" {
		t.Errorf("got %q, %q, version %d, variables %v: want all, and first that of the source", d.UID, d.Title,
			d.SchemaVersion, d.Templating.List)
	}
	variables := map[string]bool{"__rate_interval": true, "__interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		for _, fault := range unknownIn(strings.ReplaceAll(v.Definition, "label_values(", "")) {
			t.Errorf("variable %s: %s", v.Name, fault)
		}
	}
	var exprs []string
	check := func(where, expr, text string) {
		t.Helper()
		for _, fault := range unknownIn(expr, text) {
			t.Errorf("%s: %s in %s", where, fault, expr)
		}
		for _, m := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(expr, -1) {
			if !variables[m[1]] {
				t.Errorf("%s: there is no variable %s", where, m[1])
			}
		}
		exprs = append(exprs, expr)
	}
	for _, a := range d.Annotations.List {
		check("annotation", a.Expr, a.TextFormat)
	}
	ids := map[int]bool{}
	for i, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" {
			t.Errorf("panel %d %q: want an id of its own, and a title", p.ID, p.Title)
		}
		ids[p.ID] = true
		if b := p.GridPos; b.W < 1 || b.H < 1 || b.X < 0 || b.X+b.W > 24 {
			t.Errorf("%s: place %v, want one in 24 columns", p.Title, b)
		}
		for _, other := range d.Panels[:i] {
			if p.GridPos.overlaps(other.GridPos) {
				t.Errorf("%s overlaps %s", p.Title, other.Title)
			}
		}
		isRow, want := p.Type == "row", source{"prometheus", "${datasource}"}
		if !isRow && p.Datasource != want || isRow != (len(p.Targets) == 0) {
			t.Errorf("%s: source %v and %d targets", p.Title, p.Datasource, len(p.Targets))
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if refs[target.RefID] || target.RefID == "" || target.Datasource != p.Datasource {
				t.Errorf("%s: target %q from %v", p.Title, target.RefID, target.Datasource)
			}
			refs[target.RefID] = true
			check(p.Title, target.Expr, target.LegendFormat)
		}
	}
	shown := strings.Join(exprs, "\n")
	for _, f := range families {
		if strings.HasPrefix(f.name, "shaper_") && !strings.Contains(shown, f.name+"{") &&
			!slices.Contains(notShown, f.name) {
			t.Errorf("no panel shows %s", f.name)
		}
	}
	promtool(t, "check", "rules", rulesOf(t, exprs))
}

// notShown are the metrics without a panel: packets beside bytes, and causes of numbers that are shown.
var notShown = []string{
	"shaper_attached", "shaper_changes_work", "shaper_start_time_seconds", "shaper_rollback_timestamp_seconds",
	"shaper_packets_total", "shaper_queue_sent_packets_total", "shaper_queue_sent_bytes_total",
	"shaper_unclassified_bytes_total", "shaper_link_sent_packets_total", "shaper_link_queued_packets",
	"shaper_lost_packets_total", "shaper_lost_bytes_total", "shaper_keys", "shaper_keys_evicted_total",
	"shaper_keys_refused_total", "shaper_budget_calls_total", "shaper_budget_smallest",
	"shaper_customers_packets_total", "shaper_customers_dropped_packets_total", "shaper_customer_packets_total",
	"shaper_customer_dropped_bytes_total",
}

// rulesOf writes expressions as a file of rules, with values for Grafana's variables.
func rulesOf(t *testing.T, exprs []string) string {
	t.Helper()
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []rule
	for i, expr := range exprs {
		expr = regexp.MustCompile(`\[\$\w+\]`).ReplaceAllString(expr, "[5m]")
		rules = append(rules, rule{fmt.Sprintf("panel:%d", i), expr})
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
