// What the pages share: charts over time with uPlot, from the JSON in #series.
const page = (() => {
	"use strict";

	const printWidth = 680; // px: A4 and Letter within the page margins
	const laneHeight = 20; // height of a mark and the space below it, px
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
		const edges = u.data[0];
		const stroke = new Path2D();
		const fill = new Path2D();
		const x = (i) => Math.round(u.valToPos(edges[i], "x", true));
		const floor = Math.round(u.valToPos(0, "y", true));
		let joined = false;
		for (let i = 0; i < edges.length - 1; i++) {
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
	// page.css), and functions of a view: values of its cells or null, and what is drawn
	// (the values, unless they are stacked). idle is the value in the legend when no cell is
	// pointed at, and top the end of the axis in a view. marks puts elements into lanes above
	// the plot, and returns the number of lanes.
	function chart(figure, { lines, top, height, axis, text, idle, idleText, limits = [], marks, label }) {
		let view = views.whole;
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
			const x = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : -1;
			const at = x < 0 ? -1 : Math.max(0, views.first(view.edges, x * (1 + 1e-12) + 1e-12) - 1);
			const cell = at < 0 ? undefined : view.cells[Math.min(at, view.cells.length - 1)];
			lines.forEach((line, i) => {
				const value = cell ? line.values(view)[view.cells.indexOf(cell)] : idle(inView(line.values(view)));
				values[i].textContent = value == null ? "–" : text(value);
			});
			when.textContent = cell ? "at " + seconds(cell.from / 1e9) + packetsIn(cell) : idleText;
		}

		function inView(values) {
			return values.filter((_, i) => view.edges[i + 1] > view.min && view.edges[i] < view.max);
		}

		// The order of drawing is back to front: the top of a stack comes first.
		const drawn = [...lines.filter((line) => !line.over).reverse(), ...lines.filter((line) => line.over)];
		const grid = { stroke: () => ink.line, width: 1 };
		const tick = { ...grid, size: 5 };
		const common = { stroke: () => ink.muted, font: "12px system-ui, sans-serif", grid, ticks: tick };
		let lanes = 0;
		const size = (width) => ({ width: width || plot.clientWidth, height: height + lanes * laneHeight });
		function placeMarks(u) {
			const wanted = marks(u);
			if (wanted === lanes) return;
			lanes = wanted;
			queueMicrotask(() => u.setSize(size(u.width)));
		}
		const u = new uPlot({
			...size(),
			legend: { show: false },
			padding: [() => 10 + lanes * laneHeight, 16, 0, 0],
			scales: { x: { time: false }, y: { range: () => [0, top(view)] } },
			axes: [
				{ ...common, size: 30, space: 56, values: (_, ticks) => ticks.map(seconds) },
				{ ...common, size: 66, space: 34, values: (_, ticks) => ticks.map(axis) },
			],
			series: [{}, ...drawn.map((line) => ({
				paths: bars,
				points: { show: false },
				width: line.thin ? 1 : line.stroke ? 2 : 0,
				dash: line.thin && [4, 3],
				stroke: line.stroke && (() => ink[line.stroke]),
				fill: line.fill && (() => ink[line.fill]),
			}))],
			cursor: { y: false, points: { show: false }, sync: { key: "time", scales: ["x", null] } },
			hooks: {
				draw: [(u) => drawLimits(u, limits), (u) => marks && placeMarks(u)],
				setCursor: [point],
				setScale: [(u, key) => key === "x" && queueMicrotask(refine)],
			},
		}, data(), plot);
		point(u);

		function data() {
			return [view.edges, ...drawn.map((line) => [...(line.drawn || line.values)(view), null])];
		}

		// refine divides the time in view into new cells.
		function refine() {
			const { min, max } = u.scales.x;
			const next = viewOf([min, max].join());
			if (next === view) return;
			view = next;
			root.classList.toggle("zoomed", view !== views.whole);
			u.setData(data(), false);
			u.redraw(true, true);
			point(u);
		}
		plot.setAttribute("aria-label", label + ": " + lines.map((line, i) => line.label + " " + values[i].textContent).join(", ") + " (" + idleText + ")");
		charts.push({ u, size });
	}

	const viewOf = views.memo((range) => {
		const [min, max] = range.split(",").map(Number);
		return min <= 0 && max >= views.end ? views.whole : views.of(min, max);
	});

	// packetsIn names the packets of a cell in a tile.
	function packetsIn({ tile, i, j }) {
		if (!tile || i === j) return "";
		const number = (k) => tile.number[k].toLocaleString("en-US");
		return j === i + 1 ? ", packet " + number(i) : ", packets " + number(i) + " to " + number(j - 1);
	}

	// zoom shows the times from min to max, in s, in all charts.
	function zoom(min, max) {
		for (const { u } of charts) u.setScale("x", { min, max });
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
			if (value > u.scales.y.max) return;
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
	// drawAll calls for every figure the function of its kind. If one fails, the others are drawn.
	function drawAll(draw) {
		readPalette();
		for (const figure of document.querySelectorAll("figure")) {
			try {
				draw[figure.dataset.chart](figure, figure.dataset.index);
			} catch (error) {
				for (const part of figure.querySelectorAll(".legend, .plot")) part.remove();
				reportError(error);
			}
		}
	}

	function redraw() {
		readPalette();
		for (const { u } of charts) u.redraw();
	}
	function fit(w) {
		for (const { u, size } of charts) u.setSize(size(w));
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
	return { chart, laneHeight, zoom, drawAll, highest, lowest, scaled, bitrate, bytes, millis };
})();
