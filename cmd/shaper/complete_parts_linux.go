package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/changes"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/cli"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/live"
	"github.com/a-seed-32e5a53f/shaper/cmd/shaper/internal/policyfile"
	"github.com/a-seed-32e5a53f/shaper/meter/shared"
)

// noFiles is the directive of completions that are no names of files.
const noFiles = cobra.ShellCompDirectiveNoFileComp

// byPosition completes each argument by its own function, and the arguments after the last one by that of the
// last.
func byPosition(list ...cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		return list[min(len(args), len(list)-1)](cmd, args, typed)
	}
}

// nothing completes with nothing.
func nothing(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, noFiles
}

// completeSet completes the arguments of set: the interface unless --all is given, a kind, a name, changes.
func completeSet(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if all, _ := cmd.Flags().GetBool("all"); all {
		args = append([]string{""}, args...)
	}
	switch len(args) {
	case 0:
		return completeShaped(cmd, args, typed)
	case 1:
		return []string{string(changes.Customer), string(changes.Link), string(changes.Queue)}, noFiles
	}
	list := shapersOf(args[0])
	defer live.CloseAll(list)
	kind := changes.TargetKind(args[1])
	if len(args) == 2 {
		return partNames(cmd, list, kind, typed), noFiles
	}
	var words []string
	switch kind {
	case changes.Customer:
		words = append(customerColumns(list, typed, "plan="), "off", "on", "reset", "for=")
	case changes.Link, changes.Queue:
		for _, name := range changes.ShareNames() {
			words = append(words, name+"=")
		}
		words = append(words, "reset", "for=")
	}
	return unused(words, args[3:])
}

// unused removes the words whose parameters were given.
func unused(words, given []string) ([]string, cobra.ShellCompDirective) {
	key := func(word string) string {
		name, _, _ := strings.Cut(word, "=")
		return name
	}
	words = slices.DeleteFunc(words, func(word string) bool {
		return slices.ContainsFunc(given, func(g string) bool { return key(g) == key(word) })
	})
	return words, noFiles | cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveKeepOrder
}

// shapersOf returns the shapers of an interface, "" for all; none after an error.
func shapersOf(name string) []live.Handle {
	v, err := live.Look(name)
	if err != nil {
		return nil
	}
	return v.List
}

// mostCompleted is the maximum number of completed customers.
const mostCompleted = 1000

// partNames returns the names of the parts of a kind that shapers have.
func partNames(
	cmd *cobra.Command, list []live.Handle, kind changes.TargetKind, typed string,
) (names []string) {
	if kind == changes.Customer {
		return customerNames(cmd.Context(), list, typed)
	}
	for _, sh := range list {
		outline := &sh.Info().Outline
		switch kind {
		case changes.Link:
			names = append(names, outline.Links...)
		case changes.Queue:
			for _, q := range outline.Queues {
				names = append(names, q.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// customerNames returns the names of customers that contain the typed text, up to a maximum number.
func customerNames(ctx context.Context, list []live.Handle, typed string) (names []string) {
	if len(list) == 0 {
		return nil
	}
	_, _ = live.EachCustomer(ctx, list, live.CustomerQuery{Name: typed}, func(t *live.CustomerTerms) error {
		if names = append(names, t.Name); len(names) == mostCompleted {
			return context.Canceled
		}
		return nil
	})
	return names
}

// customerColumns returns the beginnings of parameters of customers, after others. For a typed plan= or link=
// it returns the plans or the links.
func customerColumns(list []live.Handle, typed string, first ...string) []string {
	words := first
	for _, sh := range list {
		policy, err := policyfile.CompileNames(sh.Info().Label)
		if err != nil || policy.Plan.Customers == nil {
			continue
		}
		values := map[string][]string{"plan=": policy.PlanNames(), "link=": sh.Info().Outline.Links}
		for _, key := range []string{"plan=", "link="} {
			if strings.HasPrefix(typed, key) {
				words = nil
				for _, value := range values[key] {
					words = append(words, key+value)
				}
				return words
			}
		}
		for _, name := range policy.OwnNames() {
			words = append(words, name+"=")
		}
		break // the directions have the same customers
	}
	return words
}

// completeCustomers completes with the customers of the interface of the first argument that were not given.
func completeCustomers(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	list := shapersOf(args[0])
	defer live.CloseAll(list)
	return slices.DeleteFunc(customerNames(cmd.Context(), list, typed),
		func(name string) bool { return slices.Contains(args[1:], name) }), noFiles
}

// completeColumns completes the columns of customer add.
func completeColumns(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	list := shapersOf(args[0])
	defer live.CloseAll(list)
	first := []string{"plan="}
	if len(list) > 0 {
		page, _ := live.QueryCustomers(list, live.CustomerQuery{Limit: 1})
		for _, name := range page.Columns {
			first = append(first, name+"=")
		}
	}
	return unused(append(customerColumns(list, typed, first...), "quota=", "idle="), args[2:])
}

// completeShow completes the arguments of customer show: a customer of --policy, or an interface and a
// customer.
func completeShow(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	file := cmd.Flag("policy").Value.String()
	switch {
	case file != "" && len(args) == 0:
		policy, err := (&cli.PolicyFlags{File: file}).Load()
		if err != nil {
			return nil, noFiles
		}
		return policyfile.PartNames(policy.Plan, changes.Customer), noFiles
	case file == "" && len(args) == 0:
		return completeShaped(cmd, args, typed)
	case file == "" && len(args) == 1:
		return completeCustomers(cmd, args, typed)
	}
	return nil, noFiles
}

// completePlans completes with the plans of the customers of the interface of the first argument.
func completePlans(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, noFiles
	}
	list := shapersOf(args[0])
	defer live.CloseAll(list)
	for _, sh := range list {
		if policy, err := policyfile.CompileNames(sh.Info().Label); err == nil {
			return policy.PlanNames(), noFiles
		}
	}
	return nil, noFiles
}

// completionTime is the maximum time that a completion waits for a server.
const completionTime = 2 * time.Second

// onServer calls f with a client of the server of --store or --policy. After an error there are no
// completions.
func onServer(
	cmd *cobra.Command, f func(context.Context, shared.Client) ([]string, error),
) ([]string, cobra.ShellCompDirective) {
	var s storeFlags
	for name, to := range map[string]*string{
		"store": &s.store.URL, "policy": &s.policy, "password-file": &s.store.PasswordFile, "ca-file": &s.store.CAFile,
		"cert-file": &s.store.CertFile, "key-file": &s.store.KeyFile,
	} {
		*to = cmd.Flag(name).Value.String()
	}
	client, err := s.open()
	if err != nil {
		return nil, noFiles
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	names, _ := f(ctx, client)
	return names, noFiles
}

// completeHosts completes with the hosts of the budget of the first argument.
func completeHosts(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return onServer(cmd, func(ctx context.Context, c shared.Client) (names []string, err error) {
		b, err := shared.ShowBudget(ctx, c, args[0])
		if err != nil {
			return nil, err
		}
		for i := range b.Hosts {
			names = append(names, b.Hosts[i].Name)
		}
		return names, nil
	})
}
