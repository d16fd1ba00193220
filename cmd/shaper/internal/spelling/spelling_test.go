package spelling

import "testing"

// TestNearest checks the suggestions for misspelled names.
func TestNearest(t *testing.T) {
	names := []string{"Customer ID", "IPv4", "IPv6", "Download", "Upload", "home-50", "home-100", "Müller"}
	for name, want := range map[string]string{
		"customer_id": "Customer ID", "CustomerID": "Customer ID", "Custommer ID": "Customer ID",
		"Cutsomer ID": "Customer ID", "ipv4": "IPv4", "IP v6": "IPv6", "Downlaod": "Download", "Dwnld": "",
		"Home-50": "home-50", "home-51": "", "hme-100": "home-100", "home50": "home-50", "home": "", "muller": "Müller",
		"": "", "x": "", "Kunde": "", "IPv5": "",
	} {
		if got := Nearest(name, names); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

// TestClosest checks the suggestions on command lines.
func TestClosest(t *testing.T) {
	names := []string{"C0001", "C0002", "Home 50", "Home 100", "eth0", "eth1", "json", "meter", "both", "ap-7"}
	for name, want := range map[string]string{
		"C0000": "C0001", "C0003": "C0001", "c0002": "C0002", "home 50": "Home 50", "home-50": "Home 50", "home100": "Home 100",
		"ehto": "", "eht0": "eth0", "eth2": "eth0", "jsn": "json", "metre": "meter", "bothh": "both", "ap-1": "ap-7",
		"x": "", "": "", "wlan0": "", "C9999": "",
	} {
		if got := Closest(name, names); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
	if got := DidYouMean("bothh", names); got != ` (did you mean "both"?)` {
		t.Errorf("got %q", got)
	}
	if got := DidYouMean("x", names); got != "" {
		t.Errorf("got %q", got)
	}
}

// TestManyNames checks that a misspelled name is not compared with many.
func TestManyNames(t *testing.T) {
	t.Parallel()
	names := make([]string, MostCompared)
	for i := range names {
		names[i] = "customer"
	}
	if got := Closest("custmer", names); got != "customer" {
		t.Errorf("among %d names %q is closest", len(names), got)
	}
	if got := Closest("custmer", append(names, "customer")); got != "" {
		t.Errorf("among one more %q is closest: want none", got)
	}
}
