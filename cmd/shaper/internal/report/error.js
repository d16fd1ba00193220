// Says on the page that a script failed, and below the headings which charts are missing.
(() => {
	"use strict";

	function sentence(text) {
		const p = document.createElement("p");
		p.className = "failed";
		p.setAttribute("role", "alert");
		p.textContent = text;
		return p;
	}
	addEventListener("error", ({ message }) => {
		document.querySelector("main").prepend(sentence("A script of this page failed, so charts are missing or wrong. The tables are not affected. " + message));
		// By then the charts after the one that failed are drawn.
		setTimeout(() => {
			for (const figure of document.querySelectorAll("figure:not(:has(canvas, .failed))")) figure.append(sentence("This chart could not be drawn."));
		});
	}, { once: true });
})();
