package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/manual"
	"github.com/a-seed-32e5a53f/shaper/docs"
)

// topic is a help topic: a page of docs, or a section of it.
type topic struct{ name, short, page, section string }

var topics = []topic{
	{"policy", "The policy language", docs.Policy, ""},
	{"meters", "Types and options of meters", docs.Policy, "meter"},
	{"units", "Units of rates, sizes and times", docs.Policy, "units"},
	{"queues", "Queues and links", docs.Queues, ""},
	{"customers", "Plans, quotas and the file of customers", docs.Customers, ""},
}

// text returns a topic, or one of its sections, for a terminal.
func (t topic) text(section string) (string, error) {
	page := manual.Parse(t.page)
	if t.section != "" {
		page = page.Section(t.section)
	}
	if section != "" {
		sections := strings.Join(page.Sections(), ", ")
		if page = page.Section(section); page == nil {
			return "", cli.Usagef("no section %q in shaper help %s: want one of %s", section, t.name, sections)
		}
	}
	return page.Text(80), nil
}

// newTopic returns the command of a topic. It cannot be run, so cobra lists it as a help topic.
func newTopic(t topic) *cobra.Command {
	cmd := &cobra.Command{Use: t.name, Short: t.short}
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		text, _ := t.text("")
		fmt.Fprint(cmd.OutOrStdout(), text)
	})
	return cmd
}

// findTopic returns the topic with that name.
func findTopic(name string) (topic, bool) {
	for _, t := range topics {
		if t.name == name {
			return t, true
		}
	}
	return topic{}, false
}
