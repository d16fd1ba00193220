// Package manual renders the pages of docs for terminals and for man(1). It reads the part of Markdown
// that these pages use: headings, paragraphs, lists, tables and fenced code.
package manual
