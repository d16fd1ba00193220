// Package routers translates policies from and to the configurations of routers and of tc.
//
// A dialect is one language of configurations. It implements Dialect in files of its own, which
// begin with its name, and is listed in All. Import reads a configuration into drafts, one for each
// policy that an interface could have:
//
//   - Split the text with ReadLines, which handles prompts, CRLF, tabs and bytes that are not text.
//   - Read statements with a Reader, by their forms. Each word must have a meaning in a form, so nothing is
//     passed over.
//   - Build the Policy of each Draft. Draft.From sets the comment of a part's key: the statement that it was
//     made from and, if the value was computed or is the default of the platform, how. Conditions are
//     matches with comments.
//   - Call Draft.Cannot for a statement that changes the fate of packets and that a policy cannot
//     express, or that is not understood; Draft.Omit if its whole class must be omitted; call
//     Import.Cannot if it is in a part that several policies may use; and call Import.Outside if it
//     limits packets elsewhere. Without --lossy these fail the import.
//   - Call Draft.Note if a policy expresses a statement with a difference.
//   - Call Import.Skip for all other statements outside of policies.
//
// Export writes a compiled policy. It calls Export.Cannot for parts that the dialect cannot
// express, and Export.Note for values which a box may round or clamp. Importing the result of
// Export must give the same policy.
package routers
