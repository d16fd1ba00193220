// What the pages share: charts over time with uPlot, from the JSON in #series.
const page = (() => {
	"use strict";

	const series = JSON.parse(document.getElementById("series").textContent);
	const bins = series.bins;
	const width = series.binWidth / 1e9; // s
	const edges = Array.from({ length: bins + 1 }, (_, i) => i * width);
	const printWidth = 680; // px: A4 and Letter within the page margins
	const root = document.documentElement;
	const charts = [];

	// Palette: the custom properties of page.css, and the two patterns that
	// tell yellow and red apart without color.
	let ink;
	function readPalette() {
		const style = getComputedStyle(root);
		const color = (name) => style.getPropertyValue("--" + name).trim();
		ink = { text: color("ink"), muted: color("muted"), line: color("line"), page: color("page") };
		for (const name of ["green", "none", "offered", "first", "first-fill", "second"]) ink[name] = color(name);
		ink.yellow = pattern(color("yellow"), color("hatch"), (c, n) => {
			c.arc(n / 2, n / 2, n * 0.24, 0, 7);
			c.fill();
		});
		ink.red = pattern(color("red"), color("hatch"), (c, n) => {
			for (const x of [-n, 0, n]) {
				c.moveTo(x - 1, n + 1);
				c.lineTo(x + n + 1, -1);
			}
			c.stroke();
		});
	}

	function pattern(back, front, draw) {
		const tile = document.createElement("canvas");
		const n = tile.width = tile.height = Math.round(6 * devicePixelRatio);
		const c = tile.getContext("2d");
		c.fillStyle = back;
		c.fillRect(0, 0, n, n);
		c.fillStyle = c.strokeStyle = front;
		c.lineWidth = n / 4.5;
		c.beginPath();
		draw(c, n);
		return c.createPattern(tile, "repeat");
	}

	// Numbers as text.
	function scaled(value, unit, digits) {
		for (const [step, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
			if (Math.abs(value) >= step) return +(value / step).toPrecision(digits) + " " + prefix + unit;
		}
		return +value.toPrecision(digits) + (unit && " " + unit);
	}
	const bitrate = (v) => scaled(v, "bit/s", 3);
	const bytes = (v) => v.toLocaleString("en-US") + " B";
	const millis = (v) => +v.toPrecision(3) + " ms";
	const seconds = (v) => +v.toPrecision(9) + " s";

	// bars is a uPlot path builder: a value holds for its whole bin, and a null
	// leaves a gap. uPlot's own steps would bridge a single bin.
	function bars(u, at) {
		const stroke = new Path2D();
		const fill = new Path2D();
		const x = (i) => Math.round(u.valToPos(edges[i], "x", true));
		const floor = Math.round(u.valToPos(0, "y", true));
		let joined = false;
		for (let i = 0; i < bins; i++) {
			const value = u.data[at][i];
			if (value == null) {
				joined = false;
				continue;
			}
			const left = x(i);
			const right = Math.max(x(i + 1), left + 1);
			const y = Math.round(u.valToPos(value, "y", true));
			if (joined) stroke.lineTo(left, y);
			else stroke.moveTo(left, y);
			stroke.lineTo(right, y);
			fill.rect(left, y, right - left, floor - y);
			joined = true;
		}
		return { stroke, fill, clip: null, band: null, gaps: null, flags: 1 };
	}

	// chart draws into a figure. Each line has a label, a swatch (a class of
	// page.css), values of a bin or null, what is drawn (the values, unless they
	// are stacked), and the value that stands in the legend when no bin is
	// pointed at.
	function chart(figure, { lines, top, height, axis, text, idle, idleText, limits = [], label }) {
		const legend = figure.appendChild(document.createElement("div"));
		legend.className = "legend";
		const values = lines.map((line) => {
			const item = legend.appendChild(document.createElement("span"));
			item.appendChild(document.createElement("i")).className = "swatch " + line.swatch;
			item.append(line.label + " ");
			return item.appendChild(document.createElement("b"));
		});
		const when = legend.appendChild(document.createElement("span"));
		when.className = "when";

		const plot = figure.appendChild(document.createElement("div"));
		plot.className = "plot";
		plot.setAttribute("role", "img");

		function point(u) {
			const at = u.cursor.left >= 0 ? Math.floor(u.posToVal(u.cursor.left, "x") / width) : -1;
			const bin = at >= 0 ? Math.min(at, bins - 1) : -1;
			lines.forEach((line, i) => {
				const value = bin < 0 ? idle(line.values) : line.values[bin];
				values[i].textContent = value == null ? "–" : text(value);
			});
			when.textContent = bin < 0 ? idleText : "at " + seconds(edges[bin]);
		}

		// The order of drawing is back to front: the top of a stack comes first.
		const drawn = lines.slice().reverse();
		const grid = { stroke: () => ink.line, width: 1 };
		const tick = { ...grid, size: 5 };
		const common = { stroke: () => ink.muted, font: "12px system-ui, sans-serif", grid, ticks: tick };
		const u = new uPlot({
			width: plot.clientWidth, height,
			legend: { show: false },
			padding: [10, 16, 0, 0],
			scales: { x: { time: false }, y: { range: [0, top] } },
			axes: [
				{ ...common, size: 30, space: 56, values: (_, ticks) => ticks.map(seconds) },
				{ ...common, size: 66, space: 34, values: (_, ticks) => ticks.map(axis) },
			],
			series: [{}, ...drawn.map((line) => ({
				paths: bars,
				points: { show: false },
				width: line.stroke ? 2 : 0,
				stroke: line.stroke && (() => ink[line.stroke]),
				fill: line.fill && (() => ink[line.fill]),
			}))],
			cursor: { y: false, points: { show: false }, sync: { key: "time", scales: ["x", null] } },
			hooks: { draw: [(u) => drawLimits(u, limits)], setCursor: [point] },
		}, [edges, ...drawn.map((line) => [...(line.drawn || line.values), null])], plot);
		charts.push({ u, plot, height });
		point(u);
		plot.setAttribute("aria-label", label + ": " + lines.map((line, i) => line.label + " " + values[i].textContent).join(", ") + " (" + idleText + ")");
	}

	// drawLimits draws dotted lines with a name: the first one's at the left,
	// the second one's at the right, so that equal sizes stay legible.
	function drawLimits(u, limits) {
		const { ctx, bbox } = u;
		const ratio = devicePixelRatio;
		ctx.save();
		ctx.font = 12 * ratio + "px system-ui, sans-serif";
		ctx.textBaseline = "bottom";
		limits.forEach(({ value, color, text }, i) => {
			const y = Math.round(u.valToPos(value, "y", true));
			ctx.strokeStyle = ink[color];
			ctx.lineWidth = 1.5 * ratio;
			ctx.setLineDash([1.5 * ratio, 3 * ratio]);
			ctx.beginPath();
			ctx.moveTo(bbox.left, y);
			ctx.lineTo(bbox.left + bbox.width, y);
			ctx.stroke();
			const x = i ? bbox.left + bbox.width - 4 * ratio : bbox.left + 4 * ratio;
			ctx.textAlign = i ? "right" : "left";
			ctx.lineWidth = 3 * ratio;
			ctx.setLineDash([]);
			ctx.lineJoin = "round";
			ctx.strokeStyle = ink.page;
			ctx.strokeText(text, x, y - 3 * ratio);
			ctx.fillStyle = ink.text;
			ctx.fillText(text, x, y - 3 * ratio);
		});
		ctx.restore();
	}

	const highest = (values) => values.reduce((a, b) => (b != null && (a == null || b > a) ? b : a), null);
	const lowest = (values) => values.reduce((a, b) => (b != null && (a == null || b < a) ? b : a), null);
	const known = (values) => values.map((v) => (v < 0 ? null : v));

	// drawAll calls for every figure the function of its kind.
	function drawAll(draw) {
		readPalette();
		for (const figure of document.querySelectorAll("figure")) draw[figure.dataset.chart](figure, figure.dataset.index);
	}
	const inRate = (values) => values.map((v) => v * 8 / width);

	function redraw() {
		readPalette();
		for (const { u } of charts) u.redraw();
	}
	function fit(w) {
		for (const { u, plot, height } of charts) u.setSize({ width: w || plot.clientWidth, height });
	}
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
	addEventListener("resize", () => fit());
	addEventListener("beforeprint", () => {
		root.classList.add("print");
		for (const { u } of charts) u.setCursor({ left: -10, top: -10 });
		fit(printWidth);
		redraw();
	});
	addEventListener("afterprint", () => {
		root.classList.remove("print");
		fit();
		redraw();
	});
	return { series, bins, chart, drawAll, inRate, highest, lowest, known, scaled, bitrate, bytes, millis };
})();
