"use strict";
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);

  // ---------------------------------------------------------------- words and numbers

  const digits = (x) => {
    const text = Number(x.toPrecision(4));
    return Math.abs(text) >= 1e4 ? Math.round(x).toLocaleString("en-US") : String(text);
  };
  function time(s) {
    if (s === null || s === undefined) return "-";
    for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["us", 1e-6], ["ns", 1e-9]])
      if (Math.abs(s) >= scale) return digits(s / scale) + " " + unit;
    return s === 0 ? "0 s" : Math.round(s / 1e-12) + " ps";
  }
  const ns = (t) => time(t * 1e-9);
  function bytes(n) {
    if (n === null || n === undefined) return "-";
    for (const [unit, scale] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
      if (Math.abs(n) >= scale) return digits(n / scale) + " " + unit;
    return Math.round(n) + " B";
  }
  function rate(n) {
    if (n === null || !isFinite(n)) return "unlimited";
    for (const [unit, scale] of [["TB/s", 1e12], ["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3]])
      if (n >= scale) return digits(n / scale) + " " + unit;
    return digits(n) + " B/s";
  }
  function flops(n) {
    for (const [unit, scale] of [["PFLOP/s", 1e15], ["TFLOP/s", 1e12], ["GFLOP/s", 1e9], ["MFLOP/s", 1e6]])
      if (n >= scale) return digits(n / scale) + " " + unit;
    return digits(n) + " FLOP/s";
  }
  const bigUnit = (text) => [text.split(" ")[0], make("small", null, " " + text.split(" ")[1])];
  const number = (x) => (Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en-US") : digits(x));
  function percent(share) {
    if (share > 0 && share < 0.0005) return "<0.1\u00a0%";
    return (share * 100).toFixed(share < 0.9995 ? 1 : 0) + "\u00a0%";
  }
  const words = (name) => name.replace(/_/g, " ");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name.replace(/[ _]/g, "-")).trim();

  // Text from the data only ever becomes text nodes, never markup.
  function make(tag, attributes, ...children) {
    const svg = ["svg", "path", "line", "text", "circle", "rect", "g"].includes(tag);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key === "style") Object.assign(node.style, value);
      else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
    }
    for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
    return node;
  }
  // New content for an element; what had the focus there has it again, so that the keyboard goes on where it was.
  function refill(id, ...children) {
    const place = $(id), held = place.contains(document.activeElement) ? document.activeElement.dataset.key || "" : null;
    place.replaceChildren(...children);
    if (held === null) return;
    const buttons = [...place.querySelectorAll("button")];
    (buttons.find((b) => b.dataset.key === held) || buttons[0])?.focus();
  }
  function legend(id, entries) {
    $(id).replaceChildren(...entries.map(([colour, label, value]) =>
      make("span", null, make("i", { style: { background: colour } }), label, value ? make("b", null, value) : null)));
  }
  const tooltip = $("tooltip");
  function tip(event, heading, where, pairs) {
    if (!heading) { tooltip.hidden = true; return; }
    const list = make("dl", null, ...pairs.flatMap(([k, v]) => [make("dt", null, k), make("dd", null, v)]));
    tooltip.replaceChildren(make("b", null, heading), where ? make("div", { class: "where" }, where) : "", list);
    tooltip.hidden = false;
    const box = tooltip.getBoundingClientRect();
    let x = event.clientX + 16, y = event.clientY + 16;
    if (x + box.width > innerWidth - 8) x = Math.max(8, event.clientX - box.width - 14);
    if (y + box.height > innerHeight - 8) y = Math.max(8, event.clientY - box.height - 14);
    tooltip.style.left = x + "px";
    tooltip.style.top = y + "px";
  }

  // ---------------------------------------------------------------- headline

  const head = DATA.headline, parts = DATA.breakdown, total = head.iteration_time_s || 1;
  const devices = DATA.devices.reduce((sum, d) => sum + d.count, 0);

  function cards() {
    $("title").textContent = DATA.title;
    $("subtitle").textContent = DATA.subtitle;
    if (DATA.warnings.length) {
      $("warnings").hidden = false;
      $("warnings").append(make("strong", null, DATA.warnings.length > 1 ? "Please note" : ""),
        make("ul", null, DATA.warnings.map((w) => make("li", null, w))));
      if (DATA.warnings.length === 1) $("warnings").replaceChildren(make("span", null, DATA.warnings[0]));
    }
    const [low, high] = head.interval_s, sure = Math.round(head.confidence * 100);
    const list = [];
    list.push(card("Time per iteration", time(total), range(low, total, high),
      [`${sure} % sure: between ${time(low)} and ${time(high)}`,
        ...DATA.unsure.map((words) => make("span", { class: "unsure" }, words.replace(/ (?=%)/g, "\u00a0")))]));
    const speed = head.throughput, samples = speed.samples_per_s, tokens = speed.tokens_per_s;
    if (samples !== null && samples !== undefined) {
      const more = tokens !== null && tokens !== undefined ? `${number(tokens)} tokens/s` : "of the global batch";
      list.push(card("Throughput", [number(samples), make("small", null, " samples/s")], null, more));
    } else if (tokens !== null && tokens !== undefined) {
      list.push(card("Throughput", [number(tokens), make("small", null, " tokens/s")], null, "of the global batch"));
    }
    const m = DATA.memory, need = m.reserved_bytes + m.context_bytes;
    if (m.capacity_bytes) {
      const meter = make("div", { class: "meter" }, make("i", { class: m.fits ? "" : "over", style: { width: Math.min(100, need / m.capacity_bytes * 100) + "%" } }));
      const word = m.fits ? make("span", { class: "good" }, "Fits") : make("span", { class: "bad" }, "Does not fit");
      list.push(card("Memory, fullest device", [...bigUnit(bytes(need)), make("small", null, " of " + bytes(m.capacity_bytes))], meter,
        [word, m.fits ? `: ${bytes(m.capacity_bytes - need)} to spare` : `: ${bytes(need - m.capacity_bytes)} too much`]));
    } else list.push(card("Memory, fullest device", bytes(need), null, "Capacity of the device not known"));
    const e = head.efficiency, each = e.tokens_per_s_per_device;
    if (e.flop_per_s_per_device !== null) {
      const figure = e.mfu === null ? null : make("div", { class: "meter" }, make("i", { class: "plain", style: { width: Math.min(100, e.mfu * 100) + "%" } }));
      const of = e.mfu === null ? "Peak of the device not known" : `${percent(e.mfu)} of ${flops(e.peak_flop_per_s_per_device)} ${e.precision} (MFU)`;
      list.push(card("Each device reaches", bigUnit(flops(e.flop_per_s_per_device)), figure,
        [of, each === null ? "" : `; ${number(each)} tokens/s`]));
    }
    const rest = [["waiting for communication", parts.exposed_communication], ["with only the host at work", parts.host], ["idle", parts.idle]]
      .filter(([, s]) => s / total >= 0.0005);
    list.push(card(devices > 1 ? "Devices compute" : "The device computes", [percent(parts.compute / total), make("small", null, " of the time")], null,
      rest.map(([w, s]) => `${percent(s / total)} ${w}`).join(", ") || "all of it"));
    $("cards").replaceChildren(...list);
  }
  function card(label, big, figure, small) {
    return make("div", { class: "card" }, make("h2", null, label), make("div", { class: "big" }, big), figure, make("p", null, small));
  }
  function range(low, middle, high) {
    if (!(high > low)) return null;
    const x = (t) => 6 + 188 * (t - low) / (high - low);
    const attributes = { viewBox: "0 0 200 14", preserveAspectRatio: "none", "aria-hidden": "true" };
    return make("svg", attributes,
      make("line", { x1: 6, x2: 194, y1: 7, y2: 7, stroke: "var(--forward)", "stroke-opacity": .35, "stroke-width": 6, "stroke-linecap": "round" }),
      make("line", { x1: x(middle), x2: x(middle), y1: 1, y2: 13, stroke: "var(--ink)", "stroke-width": 2 }));
  }

  // ---------------------------------------------------------------- breakdown

  function breakdown() {
    const kinds = [["compute", "compute", "compute"], ["exposed_communication", "exposed communication", "communication"],
      ["host", "only the host at work", "host"], ["idle", "idle", "idle"]];
    // Device rows do not tell the two apart; where the host plays a part, their common segment is striped.
    const striped = DATA.devices.length > 1 && parts.host / total >= 0.0005;
    const either = striped ? `repeating-linear-gradient(135deg, ${css("communication")} 0 7px, ${css("host")} 7px 11px)` : css("communication");
    const entries = kinds.filter(([key]) => parts[key] > 0).map(([key, label, colour]) => [css(colour), label, time(parts[key])]);
    legend("breakdown-legend", striped ? [...entries, [either, "communication or host"]] : entries);
    const rows = [row(devices > 1 ? "Mean" : "The device", devices > 1 ? `over ${number(devices)} devices` : "",
      kinds.map(([key, label, colour]) => [parts[key], label, colour]), total, true)];
    const stages = new Set(DATA.devices.map((d) => d.stage)).size;
    if (DATA.devices.length > 1) for (const d of DATA.devices) {
      const rest = Math.max(0, total - d.busy_s - d.idle_s);
      const more = [d.count > 1 ? `and ${number(d.count - 1)} more like it` : "", stages > 1 ? `stage ${d.stage}` : ""];
      rows.push(row(`Rank ${d.rank}`, more.filter(Boolean).join(", "), [[d.busy_s, "compute", "compute"],
        [rest, striped ? "exposed communication or host" : "exposed communication", either], [d.idle_s, "idle", "idle"]], total, false,
        [["Communication in flight", time(d.communication_s)], ["Host busy", time(d.host_cpu_s)],
          ["Memory, peak", bytes(d.allocated_bytes)]]));
    }
    const most = 13;
    $("breakdown-bars").replaceChildren(...rows.slice(0, most));
    if (rows.length > most) {
      const more = make("button", { onclick: () => more.replaceWith(...rows.slice(most)) }, `Show all ${rows.length - 1} kinds of rank`);
      $("breakdown-bars").append(more);
    }
    if (parts.communication > 0) {
      const hidden = Math.max(0, 1 - parts.exposed_communication / parts.communication);
      $("breakdown-bars").append(make("p", { class: "note" },
        `Communication is under way for ${time(parts.communication)} of an iteration; ${percent(hidden)} of that hides behind compute.`));
    }
  }
  function row(who, more, segments, whole, first, extra) {
    const bar = make("div", { class: "stack" }, segments.filter(([s]) => s > 0).map(([s, , colour]) =>
      make("i", { class: colour === "idle" ? "pale" : "", style: { width: s / whole * 100 + "%", background: css(colour) || colour } },
        s / whole > 0.055 ? percent(s / whole) : "")));
    const lines = segments.filter(([s]) => s > 0).map(([s, label]) => [label, `${time(s)}  (${percent(s / whole)})`]);
    bar.addEventListener("mousemove", (e) => tip(e, who, more, [...lines, ...(extra || [])]));
    bar.addEventListener("mouseleave", () => tip());
    return make("div", { class: "bar-row" + (first ? " first" : "") },
      make("div", { class: "who" }, who, more ? make("small", null, more) : null), bar, make("div", { class: "sum" }, time(whole)));
  }

  // ---------------------------------------------------------------- timeline

  const T = DATA.timeline;
  const AXIS = 26, BLOCK_GAP = 9, LANE_GAP = 2;
  const HEIGHT = { compute: 20, host: 9 };
  const ORDER = ["compute", "tp", "dp", "send", "receive", "copy", "host"];
  const LANE_NAME = { compute: "compute", tp: "tensor par.", dp: "data par.", send: "send", receive: "receive", copy: "copy", host: "host" };
  const MICRO = ["#4a90e2", "#f0a63a", "#18a594", "#e2603b", "#7d63b0", "#8d8b3f", "#d1589b", "#3b9cc4", "#7fae42", "#9a7a5b"];
  const view = { t0: 0, t1: 1, y: 0, width: 0, height: 0, gutter: 150, content: 0 };
  let lanes = [], blocks = [], meetings = [], hover = null, shades = null, found = null, pending = false, drag = null;
  const canvas = $("timeline-canvas"), frame = $("timeline-view"), pen = canvas.getContext("2d");

  function spread(runs, n) {
    const out = new Int32Array(n);
    for (let i = 0, at = 0; i < runs.length; i += 2) { out.fill(runs[i], at, at + runs[i + 1]); at += runs[i + 1]; }
    return out;
  }
  function unpack() {
    const seen = {};
    lanes = T.lanes.map((l) => {
      const n = l.kind.length, start = new Float64Array(n), end = new Float64Array(n);
      for (let i = 0, t = 0; i < n; i++) { t += l.start[i]; start[i] = t; end[i] = t + l.length[i]; }
      const key = l.rank + l.stream;
      seen[key] = (seen[key] || 0) + 1;
      return { rank: l.rank, stream: l.stream, again: seen[key], n, start, end, kind: Int32Array.from(l.kind),
        micro: spread(l.micro_batch, n), iteration: spread(l.iteration, n), wait: l.wait || null, meeting: l.meeting || null };
    });
    const place = (s) => (ORDER.indexOf(s) + ORDER.length + 1) % (ORDER.length + 1);
    lanes.sort((a, b) => a.rank - b.rank || place(a.stream) - place(b.stream) || a.again - b.again);
    let y = 4, last = null;
    for (const lane of lanes) {
      if (lane.rank !== last) {
        if (last !== null) y += BLOCK_GAP;
        blocks.push({ rank: T.ranks.find((r) => r.rank === lane.rank), y });
        last = lane.rank;
      }
      lane.y = y;
      lane.h = HEIGHT[lane.stream] || 12;
      y += lane.h + LANE_GAP;
      blocks[blocks.length - 1].bottom = y;
    }
    view.content = y + 4;
    lanes.forEach((lane, l) => lane.meeting && lane.meeting.forEach((m, i) => m >= 0 && (meetings[m] = meetings[m] || []).push([l, i])));
    view.t1 = T.end || 1;
  }
  // Rows of T.kinds: name, module, phase, op, bytes, group, colour group.
  const kindOf = (lane, i) => T.kinds[lane.kind[i]];
  const shortName = (name) => name.replace(/^[a-z_]+::/, "");
  function label(kind) {
    const name = shortName(T.names[kind[0]]);
    if (kind[1] < 0) return name;
    const module = T.modules[kind[1]].split(".").slice(-2).join(".");
    return module ? `${module}  ${name}` : name;
  }
  function shade() {
    const by = $("colour-by").value;
    if (by === "group") {
      shades = { of: (lane, i) => kindOf(lane, i)[6], list: DATA.groups.map(css) };
      const used = new Set(T.kinds.map((k) => k[6]));
      const entries = DATA.groups.map((g, i) => [css(g), g, i]).filter(([, , i]) => used.has(i)).map(([c, g]) => [c, g]);
      if (lanes.some((l) => l.wait)) entries.push([`repeating-linear-gradient(45deg, ${css("faint")} 0 2px, transparent 2px 4px)`, "waiting for the other ranks"]);
      legend("timeline-legend", entries);
    } else if (by === "micro_batch") {
      const most = lanes.reduce((m, l) => l.micro.reduce((a, b) => Math.max(a, b), m), 0);
      shades = { of: (lane, i) => Math.max(0, lane.micro[i]) % MICRO.length, list: MICRO };
      const shown = Math.min(most + 1, MICRO.length);
      legend("timeline-legend", Array.from({ length: shown }, (_, i) => [MICRO[i], `micro-batch ${i}` + (most >= MICRO.length ? `, ${i + MICRO.length}, ...` : "")]));
    } else {
      // Modules of repeated layers share a colour; hues are dealt out in order of first use.
      const names = new Map(), of = T.modules.map((m) => {
        const key = m.split(".").filter((p) => !/^\d+$/.test(p)).join(".") || m;
        if (!names.has(key)) names.set(key, names.size);
        return names.get(key);
      });
      const list = Array.from({ length: names.size }, (_, i) => `hsl(${(i * 137.5 + 210) % 360} 55% ${i % 2 ? 58 : 48}%)`);
      list.push(css("faint"));
      shades = { of: (lane, i) => { const m = kindOf(lane, i)[1]; return m < 0 ? list.length - 1 : of[m]; }, list };
      const entries = [...names].slice(0, 14).map(([key, i]) => [list[i], key]);
      legend("timeline-legend", names.size > 14 ? [...entries, ["transparent", `and ${names.size - 14} more`]] : entries);
    }
    draw();
  }
  function search() {
    const text = $("find").value.trim().toLowerCase();
    const old = $("timeline-found");
    if (old) old.remove();
    found = null;
    if (text) {
      found = T.kinds.map((k) => (T.names[k[0]] + " " + (k[1] >= 0 ? T.modules[k[1]] : "")).toLowerCase().includes(text));
      let count = 0, sum = 0;
      for (const lane of lanes) if (lane.stream !== "host") for (let i = 0; i < lane.n; i++) if (found[lane.kind[i]]) { count++; sum += lane.end[i] - lane.start[i]; }
      $("find").parentElement.after(make("span", { id: "timeline-found" }, count ? `${number(count)} slices, ${ns(sum)} on all ranks shown` : "nothing found"));
    }
    draw();
  }
  function size() {
    const width = frame.clientWidth, ratio = window.devicePixelRatio || 1;
    view.width = width;
    view.gutter = width < 560 ? 122 : 150;
    view.height = AXIS + Math.min(view.content, Math.max(240, innerHeight * 0.7));
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(view.height * ratio);
    canvas.style.width = width + "px";
    canvas.style.height = view.height + "px";
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw();
  }
  const draw = () => { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; paint(); }); } };
  const toX = (t) => view.gutter + (t - view.t0) / (view.t1 - view.t0) * (view.width - view.gutter);
  const toT = (x) => view.t0 + (x - view.gutter) / (view.width - view.gutter) * (view.t1 - view.t0);

  // First slice of a lane that ends after t (slices of a lane do not overlap).
  function first(lane, t) {
    let low = 0, high = lane.n;
    while (low < high) { const middle = (low + high) >> 1; if (lane.end[middle] > t) high = middle; else low = middle + 1; }
    return low;
  }
  function paint() {
    const { width, height, gutter } = view;
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = css("sheet");
    pen.fillRect(0, 0, width, height);
    const ink = css("ink"), soft = css("soft"), faint = css("faint");
    pen.fillStyle = css("page");
    for (const lane of lanes) pen.fillRect(gutter, AXIS + lane.y - view.y, width - gutter, lane.h);
    pen.clearRect(0, 0, width, AXIS);
    axis();
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS, width, height - AXIS);
    pen.clip();
    for (const block of blocks) {
      const y = AXIS + block.y - view.y;
      if (y > height || AXIS + block.bottom - view.y < AXIS) continue;
      pen.fillStyle = ink;
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      pen.font = "600 12px system-ui, sans-serif";
      pen.fillText(`rank ${block.rank.rank}`, 8, y + 10);
      if (T.stages > 1 && width >= 560) {
        pen.fillStyle = faint;
        pen.font = "11px system-ui, sans-serif";
        pen.fillText(`stage ${block.rank.stage}`, 8, y + 26);
      }
    }
    pen.font = "10.5px system-ui, sans-serif";
    for (const lane of lanes) {
      const y = AXIS + lane.y - view.y;
      if (y > height || y + lane.h < AXIS) continue;
      pen.fillStyle = soft;
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillText((LANE_NAME[lane.stream] || lane.stream) + (lane.again > 1 ? " " + lane.again : ""), gutter - 7, y + lane.h / 2 + .5);
      pen.save();
      pen.beginPath();
      pen.rect(gutter, y, width - gutter, lane.h);
      pen.clip();
      slices(lane, y);
      pen.restore();
    }
    marks();
    pen.restore();
    scrollbars();
  }
  function slices(lane, y) {
    const k = (view.width - view.gutter) / (view.t1 - view.t0), list = shades.list, h = lane.h;
    // Slices narrower than a pixel are merged: the pixel shows the colour that fills most of it, as strongly as it is filled.
    let pixel = -1, fill = 0;
    const share = new Float64Array(list.length), used = [], ratio = window.devicePixelRatio || 1;
    const snap = (at) => Math.round(at * ratio) / ratio;
    const flush = () => {
      if (pixel >= 0 && fill > 0) {
        let best = used[0];
        for (const c of used) if (share[c] > share[best]) best = c;
        pen.globalAlpha = Math.min(1, 0.2 + 0.8 * fill);
        pen.fillStyle = list[best];
        pen.fillRect(pixel, y, 1, h);
        pen.globalAlpha = 1;
      }
      for (const c of used) share[c] = 0;
      used.length = 0;
      fill = 0;
    };
    const add = (c, amount) => { if (!share[c]) used.push(c); share[c] += amount; fill += amount; };
    for (let i = first(lane, view.t0); i < lane.n && lane.start[i] < view.t1; i++) {
      const x = view.gutter + (lane.start[i] - view.t0) * k, w = (lane.end[i] - lane.start[i]) * k;
      const c = shades.of(lane, i), pale = found && !found[lane.kind[i]];
      if (w < 1.5) {
        const weight = pale ? .12 : 1, least = found && !pale ? 0.7 : 0.02;
        for (let from = x, to = x + w; from <= to;) {
          const p = Math.floor(from);
          if (p !== pixel) { flush(); pixel = p; }
          add(c, Math.max((Math.min(to, p + 1) - from) * weight, from === x ? least : 0));
          from = p + 1;
        }
        continue;
      }
      flush();
      pixel = -1;
      const gap = w > 8 ? 0.7 : 0, reach = gap ? 0 : 0.5;  // small neighbours meet without a seam
      const left = snap(Math.max(x - reach, view.gutter - 4)), right = snap(Math.min(x + w + reach, view.width + 4));
      const waited = lane.wait && lane.wait[i] ? lane.wait[i] * k : 0;
      pen.fillStyle = list[c];
      pen.globalAlpha = pale ? 0.15 : 1;
      if (waited > 1) {
        const until = Math.min(x + waited, right);
        if (until > left) hatch(left, y, until - left - gap, h, list[c], pale);
        if (right > until) { pen.globalAlpha = pale ? 0.15 : 1; pen.fillStyle = list[c]; pen.fillRect(Math.max(left, until), y, right - Math.max(left, until) - gap, h); }
      } else pen.fillRect(left, y, right - left - gap, h);
      pen.globalAlpha = 1;
      if (h >= 12 && right - left > 34 && !pale) {
        const from = Math.max(left + (waited > 1 ? Math.min(waited, right - left) : 0), view.gutter);
        const room = right - from - 8;
        if (room > 26) {
          let text = label(kindOf(lane, i));
          const fits = Math.floor(room / 5.7);
          if (text.length > fits) text = text.split("  ")[0];
          if (text.length > fits) text = text.slice(0, Math.max(1, fits - 1)) + "…";
          pen.fillStyle = "#fff";
          pen.textAlign = "left";
          pen.fillText(text, from + 4, y + h / 2 + .5);
        }
      }
    }
    flush();
  }
  function hatch(x, y, w, h, colour, pale) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w, h);
    pen.clip();
    pen.globalAlpha = pale ? 0.06 : 0.22;
    pen.fillStyle = colour;
    pen.fillRect(x, y, w, h);
    pen.globalAlpha = pale ? 0.12 : 0.75;
    pen.strokeStyle = colour;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let at = x - h; at < x + w; at += 5) { pen.moveTo(at, y + h); pen.lineTo(at + h, y); }
    pen.stroke();
    pen.restore();
  }
  function axis() {
    const span = view.t1 - view.t0, wanted = span / Math.max(2, (view.width - view.gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(wanted)), step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= wanted);
    // One unit for all labels, fit for the last one; as many decimals as the step needs.
    const [unit, scale] = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]].find(([, s]) => Math.max(view.t1, step) >= s) || ["ns", 1];
    const decimals = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "center";
    for (let t = Math.ceil(view.t0 / step) * step; t <= view.t1; t += step) {
      const x = toX(t);
      pen.fillStyle = css("line");
      pen.fillRect(Math.round(x), AXIS - 5, 1, view.height - AXIS + 5);
      const text = (t / scale).toFixed(decimals) + " " + unit, half = pen.measureText(text).width / 2;
      if (x + half > view.width - 4 || x - half < view.gutter - 20) continue;
      pen.fillStyle = css("soft");
      pen.fillText(text, x, AXIS / 2 - 1);
    }
    for (const t of T.iterations) if (t >= view.t0 && t <= view.t1) {
      pen.fillStyle = css("ink");
      pen.fillRect(Math.round(toX(t)) - 1, AXIS - 8, 2, view.height - AXIS + 8);
    }
  }
  function marks() {
    if (!hover) return;
    const outline = (lane, i) => {
      const a = Math.max(toX(lane.start[i]), view.gutter), b = Math.min(toX(lane.end[i]), view.width);
      if (b < view.gutter || a > view.width) return;
      pen.strokeStyle = css("ink");
      pen.lineWidth = 1.5;
      pen.strokeRect(a, AXIS + lane.y - view.y + .5, Math.max(b - a, 2), lane.h - 1);
    };
    const lane = lanes[hover.lane], m = lane.meeting ? lane.meeting[hover.i] : -1;
    outline(lane, hover.i);
    if (m < 0) return;
    const begun = (l, i) => l.start[i] + (l.wait ? l.wait[i] : 0);
    for (const [l, i] of meetings[m]) {
      const other = lanes[l];
      if (other === lane && i === hover.i) continue;
      outline(other, i);
      pen.strokeStyle = css("ink");
      pen.globalAlpha = .6;
      pen.setLineDash([3, 3]);
      pen.beginPath();
      pen.moveTo(toX(begun(lane, hover.i)), AXIS + lane.y + lane.h / 2 - view.y);
      pen.lineTo(toX(begun(other, i)), AXIS + other.y + other.h / 2 - view.y);
      pen.stroke();
      pen.setLineDash([]);
      pen.globalAlpha = 1;
    }
  }
  function scrollbars() {
    pen.fillStyle = css("faint");
    pen.globalAlpha = .55;
    const span = T.end || 1, room = view.width - view.gutter;
    if (view.t1 - view.t0 < span * .999)
      pen.fillRect(view.gutter + view.t0 / span * room, view.height - 4, Math.max(14, (view.t1 - view.t0) / span * room), 3);
    const tall = view.height - AXIS;
    if (view.content > tall + 1) pen.fillRect(view.width - 4, AXIS + view.y / view.content * tall, 3, Math.max(14, tall / view.content * tall));
    pen.globalAlpha = 1;
  }
  function show(t0, t1) {
    const span = T.end || 1, wide = Math.min(span, Math.max(t1 - t0, Math.min(span, 20)));
    const from = Math.min(Math.max(0, t0), span - wide);
    view.t0 = from;
    view.t1 = from + wide;
    draw();
  }
  function zoom(factor, x) {
    const t = toT(x === undefined ? (view.width + view.gutter) / 2 : Math.max(x, view.gutter));
    show(t - (t - view.t0) * factor, t + (view.t1 - t) * factor);
  }
  function scrollTo(y) { view.y = Math.max(0, Math.min(y, view.content - (view.height - AXIS))); draw(); }
  function pick(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top - AXIS + view.y;
    if (x < view.gutter || event.clientY - box.top < AXIS) return null;
    const l = lanes.findIndex((lane) => y >= lane.y - 1 && y <= lane.y + lane.h + 1);
    if (l < 0) return null;
    const lane = lanes[l], t = toT(x), near = 2 * (view.t1 - view.t0) / (view.width - view.gutter);
    let best = -1;
    for (let i = first(lane, t - near); i < lane.n && lane.start[i] < t + near; i++) {
      if (lane.start[i] <= t && lane.end[i] > t) { best = i; break; }
      if (best < 0) best = i;
    }
    return best < 0 ? null : { lane: l, i: best };
  }
  function describe(event) {
    const lane = lanes[hover.lane], i = hover.i, kind = kindOf(lane, i), [name, module, phase, op, size, group] = kind;
    const block = T.ranks.find((r) => r.rank === lane.rank), waited = lane.wait ? lane.wait[i] : 0;
    const long = lane.end[i] - lane.start[i], moved = long - waited;
    const pairs = [["Time", ns(long)], ["From", `${ns(lane.start[i])} to ${ns(lane.end[i])}`]];
    if (waited > 0) pairs.push(["Waited", `${ns(waited)} for ${T.ops[op] === "collective" ? "the other ranks" : "its turn"}`]);
    if (size > 0) {
      pairs.push(["Bytes", bytes(size)]);
      if (moved > 0) pairs.push(["Rate", rate(size / (moved * 1e-9))]);
    }
    if (phase >= 0) pairs.push(["Phase", T.phases[phase]]);
    pairs.push(["Micro-batch", String(lane.micro[i])]);
    if (T.iterations.length) pairs.push(["Iteration", String(lane.iteration[i])]);
    if (group >= 0) pairs.push(["Ranks", T.members[group]]);
    pairs.push(["On", block.name]);
    tip(event, T.names[name], module >= 0 ? T.modules[module] : null, pairs);
  }
  function timeline() {
    if (!T.lanes.length) { $("timeline").hidden = true; return; }
    unpack();
    shade();
    size();
    $("timeline-notes").replaceChildren(...T.notes.map((n) => make("p", { class: "note" }, n)));
    frame.addEventListener("wheel", (e) => {
      if (Math.abs(e.deltaX) > Math.abs(e.deltaY) || e.shiftKey) {
        const by = (e.deltaX || e.deltaY) / view.width * (view.t1 - view.t0);
        if (view.t1 - view.t0 < T.end) { e.preventDefault(); show(view.t0 + by, view.t1 + by); }
        return;
      }
      if (e.deltaY > 0 && view.t1 - view.t0 >= T.end * .999) return;  // all is in view: let the page scroll
      e.preventDefault();
      zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY * .002 * (e.deltaMode ? 16 : 1)))), e.clientX - canvas.getBoundingClientRect().left);
    }, { passive: false });
    frame.addEventListener("pointerdown", (e) => {
      drag = { x: e.clientX, y: e.clientY, t0: view.t0, t1: view.t1, top: view.y };
      frame.setPointerCapture(e.pointerId);
      frame.classList.add("dragging");
      tip();
    });
    const release = () => { drag = null; frame.classList.remove("dragging"); };
    frame.addEventListener("pointerup", release);
    frame.addEventListener("pointercancel", release);
    frame.addEventListener("pointermove", (e) => {
      if (drag) {
        const by = (drag.x - e.clientX) / (view.width - view.gutter) * (drag.t1 - drag.t0);
        show(drag.t0 + by, drag.t1 + by);
        scrollTo(drag.top + drag.y - e.clientY);
        return;
      }
      hover = pick(e);
      if (hover) describe(e); else tip();
      draw();
    });
    frame.addEventListener("pointerleave", () => { hover = null; tip(); draw(); });
    frame.addEventListener("dblclick", (e) => {
      const at = pick(e);
      if (!at) return;
      const lane = lanes[at.lane], long = Math.max(lane.end[at.i] - lane.start[at.i], 20);
      show(lane.start[at.i] - long * .2, lane.end[at.i] + long * .2);
    });
    frame.addEventListener("keydown", (e) => {
      const by = (view.t1 - view.t0) * .15;
      const keys = { "+": () => zoom(.6), "=": () => zoom(.6), "-": () => zoom(1 / .6), "0": () => show(0, T.end),
        ArrowLeft: () => show(view.t0 - by, view.t1 - by), ArrowRight: () => show(view.t0 + by, view.t1 + by),
        ArrowUp: () => scrollTo(view.y - 40), ArrowDown: () => scrollTo(view.y + 40) };
      if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
    });
    $("zoom-in").onclick = () => zoom(.5);
    $("zoom-out").onclick = () => zoom(2);
    $("zoom-all").onclick = () => show(0, T.end);
    $("colour-by").onchange = shade;
    $("find").oninput = search;
  }

  // ---------------------------------------------------------------- memory

  let trackAt = 0;
  function memory() {
    if (!DATA.tracks.length) { $("memory").hidden = true; return; }
    const m = DATA.memory, need = m.reserved_bytes + m.context_bytes;
    let text = `At its peak the fullest device holds ${bytes(m.allocated_bytes)} in tensors. With what the allocator keeps in reserve `;
    text += `(${bytes(m.reserved_bytes - m.allocated_bytes)}) and the framework's own share (${bytes(m.context_bytes)}) it needs ${bytes(need)}`;
    text += m.capacity_bytes ? ` of ${bytes(m.capacity_bytes)}.` : "; its capacity is not known.";
    if (m.peak.phase) text += ` The peak is in the ${m.peak.phase}${m.peak.module ? ` of ${m.peak.module}` : ""}, at ${m.peak.operator}.`;
    if (m.largest_batch !== null) text += m.largest_batch ? ` The largest batch of a replica that fits is ${number(m.largest_batch)}.` : " No batch fits.";
    $("memory-lead").textContent = text;
    $("holders").hidden = !m.holders.length;
    if (m.holders.length) table("holders-table", [
      ["What", (h) => h.category, (h) => words(h.category), true],
      ["Module", (h) => h.module, (h) => h.module || "(no module)", true, "All repeated blocks in one row"],
      ["Largest part", (h) => h.largest, (h) => h.largest || "-", true, "What made it, or which parameter it belongs to"],
      ["Bytes", (h) => h.bytes, (h) => bytes(h.bytes)],
      ["Share", (h) => h.bytes, (h) => percent(h.bytes / m.allocated_bytes)],
    ], m.holders, { at: 3, down: true });
    const fullest = DATA.tracks.map(peak);
    trackAt = fullest.indexOf(Math.max(...fullest));
    const stage = (rank) => { const r = DATA.devices.find((d) => d.rank === rank); return r && T.stages > 1 ? `, stage ${r.stage}` : ""; };
    const name = (t) => `Rank ${t.rank}${stage(t.rank)}`, turn = (i) => { trackAt = i; memoryChart(); };
    if (DATA.tracks.length > 6) {
      const choice = make("select", { onchange: () => turn(choice.selectedIndex) }, DATA.tracks.map((t) => make("option", null, name(t))));
      choice.selectedIndex = trackAt;
      $("memory-tabs").replaceChildren(make("label", null, "Memory of ", choice));
    } else if (DATA.tracks.length > 1) $("memory-tabs").replaceChildren(...DATA.tracks.map((t, i) => make("button", { onclick: () => turn(i) }, name(t))));
    memoryChart();
  }
  const peak = (track) => track.time.reduce((most, _, i) => Math.max(most, track.kib.reduce((s, c) => s + c[i], 0)), 0) * 1024;
  function memoryChart() {
    $("memory-tabs").querySelectorAll("button").forEach((b, i) => b.setAttribute("aria-pressed", i === trackAt));
    const track = DATA.tracks[trackAt], top = peak(track), capacity = DATA.memory.capacity_bytes, end = T.end || 1;
    const names = track.categories.map((c) => DATA.categories[c]);
    const held = (c, i) => (track.kib[c][i] ? bytes(track.kib[c][i] * 1024) : track.kib[c].some(Boolean) ? "0 B" : "<1 KiB");
    // The last state within an iteration tells little; the legend gives what is held at the peak.
    let at = 0, most = -1;
    track.time.forEach((_, i) => { const sum = track.kib.reduce((s, c) => s + c[i], 0); if (sum > most) { most = sum; at = i; } });
    legend("memory-legend", names.map((n, c) => [css(n), words(n), held(c, at)]).reverse());
    $("memory-legend").prepend(make("span", null, `At the peak (${bytes(top)}, after ${ns(track.time[at])}):`));
    const width = Math.max(300, $("memory-chart").clientWidth), height = 250, left = 64, bottom = 24, right = 8;
    const near = capacity && capacity < top * 3;
    const high = near ? Math.max(capacity, top) * 1.06 : top * 1.12 || 1;
    const x = (t) => left + Math.min(1, t / end) * (width - left - right), y = (b) => height - bottom - b / high * (height - bottom - 8);
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Memory held over time" });
    let step = 2 ** Math.floor(Math.log2(high / 4));
    if (high / step > 7) step *= 2;
    for (let b = 0; b <= high; b += step) svg.append(
      make("line", { class: "grid", x1: left, x2: width - right, y1: y(b), y2: y(b) }),
      make("text", { x: left - 8, y: y(b) + 4, "text-anchor": "end" }, b ? bytes(b) : "0"));
    timeAxis(svg, x, end, width, height);
    const below = new Float64Array(track.time.length);
    track.categories.forEach((_, c) => {
      let up = "", back = "";
      for (let i = 0; i < track.time.length; i++) {
        const t0 = x(track.time[i]).toFixed(1), t1 = x(i + 1 < track.time.length ? track.time[i + 1] : end).toFixed(1);
        const low = y(below[i]).toFixed(1);
        below[i] += track.kib[c][i] * 1024;
        const over = y(below[i]).toFixed(1);
        up += `${i ? "L" : "M"}${t0} ${over}L${t1} ${over}`;
        back = `L${t1} ${low}L${t0} ${low}` + back;
      }
      svg.append(make("path", { d: up + back + "Z", fill: css(names[c]), "fill-opacity": .92 }));
    });
    if (near) {
      const over = y(capacity);
      svg.append(make("line", { class: "capacity", x1: left, x2: width - right, y1: over, y2: over }),
        make("text", { class: "capacity-label", x: width - right - 4, y: over > 30 ? over - 6 : over + 15, "text-anchor": "end" }, `capacity ${bytes(capacity)}`));
    } else if (capacity) svg.append(make("text", { x: width - right - 4, y: 14, "text-anchor": "end" }, `capacity ${bytes(capacity)}, far above`));
    const cursor = make("line", { class: "cursor", y1: 8, y2: height - bottom, visibility: "hidden" });
    svg.append(cursor);
    svg.addEventListener("mousemove", (e) => {
      const box = svg.getBoundingClientRect(), px = (e.clientX - box.left) / box.width * width;
      const t = Math.max(0, Math.min(1, (px - left) / (width - left - right))) * end;
      let i = track.time.findIndex((u) => u > t);
      i = i < 0 ? track.time.length - 1 : Math.max(0, i - 1);
      cursor.setAttribute("x1", px);
      cursor.setAttribute("x2", px);
      cursor.setAttribute("visibility", px >= left && px <= width - right ? "visible" : "hidden");
      const rows = names.map((n, c) => [words(n), held(c, i)]).reverse();
      tip(e, bytes(track.kib.reduce((s, c) => s + c[i], 0) * 1024), `after ${ns(t)}`, rows);
    });
    svg.addEventListener("mouseleave", () => { cursor.setAttribute("visibility", "hidden"); tip(); });
    $("memory-chart").replaceChildren(svg);
  }

  const round = (least) => { const power = 10 ** Math.floor(Math.log10(least)); return [1, 2, 5, 10].map((k) => k * power).find((s) => s >= least); };
  function timeAxis(svg, x, end, width, height) {
    const stride = round(end / Math.max(2, Math.floor(width / 150)));
    for (let t = 0; t <= end; t += stride) svg.append(
      make("text", { x: x(t), y: height - 6, "text-anchor": t ? "middle" : "start" }, t ? ns(t) : "0"));
  }

  // ---------------------------------------------------------------- energy

  const big = (x, unit) => { const k = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([n]) => Math.abs(x) >= n) || [1, ""]; return `${digits(x / k[0])} ${k[1]}${unit}`; };
  function energy() {
    const e = DATA.energy;
    if (!e) { $("energy").hidden = true; return; }
    let text = `An iteration takes ${big(e.node_j, "J")} (90 % between ${big(e.interval_j[0], "J")} and ${big(e.interval_j[1], "J")} at these times): `;
    text += `${big(e.mean_w, "W")} in the mean, ${big(e.peak_w, "W")} at most; a device draws ${big(e.device_mean_w, "W")}. `;
    text += `With a PUE of ${digits(e.pue)} the facility takes ${big(e.facility_j, "J")}.`;
    $("energy-lead").textContent = text;
    const part = (name, j) => ({ name, j });
    const rows = ["operators", "idle", "links", "host"].map((n) => part(n, e[`${n}_j`]));
    rows.push(...Object.entries(e.parts_j).map(([n, j]) => part(`operators: ${words(n)}`, j)));
    table("energy-table", [
      ["Part", (r) => r.name, (r) => r.name, true],
      ["Energy", (r) => r.j, (r) => big(r.j, "J"), false, "In an iteration, all devices together"],
      ["Share", (r) => r.j, (r) => percent(r.j / (e.node_j || 1))],
    ], rows, { at: 1, down: true });
    powerChart();
  }
  function powerChart() {
    const c = DATA.energy.curve, end = T.end || 1, high = Math.max(...c.watts, 1) * 1.08;
    const width = Math.max(300, $("energy-chart").clientWidth), height = 200, left = 64, bottom = 24, right = 8;
    const x = (t) => left + Math.min(1, t / end) * (width - left - right), y = (w) => height - bottom - w / high * (height - bottom - 8);
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Power of all nodes over time" });
    for (let w = 0, step = round(high / 5); w <= high; w += step) svg.append(
      make("line", { class: "grid", x1: left, x2: width - right, y1: y(w), y2: y(w) }),
      make("text", { x: left - 8, y: y(w) + 4, "text-anchor": "end" }, w ? big(w, "W") : "0"));
    timeAxis(svg, x, end, width, height);
    let d = `M${x(0)} ${y(0)}`;
    c.watts.forEach((w, i) => {
      const t1 = i + 1 < c.watts.length ? c.time_s[i + 1] * 1e9 : end;
      d += `L${x(c.time_s[i] * 1e9).toFixed(1)} ${y(w).toFixed(1)}L${x(t1).toFixed(1)} ${y(w).toFixed(1)}`;
    });
    svg.append(make("path", { d: `${d}L${x(end)} ${y(0)}Z`, fill: css("compute"), "fill-opacity": .8 }));
    $("energy-chart").replaceChildren(svg);
  }

  // ---------------------------------------------------------------- modules

  const tree = { root: null, open: new Set(), key: "total", down: true };
  const PHASES = ["forward", "recompute", "backward", "optimizer"];
  // What is left when the named parts are taken away; rounding leaves no sliver.
  function remainder(node) {
    const rest = node.total - node.forward - node.backward - node.communication;
    return rest > 1e-9 * node.total ? rest : 0;
  }
  function grow() {
    const M = DATA.modules, together = $("fold").checked;
    const root = { name: "", path: "", children: new Map(), own: {}, total: 0, members: new Set(), weights: 0, order: 0 };
    const held = new Map();
    let order = 0;
    for (const [m, phase, compute, communication, weight] of M.rows) {
      const real = M.paths[m].split("."), shown = (together ? M.folded[m] : M.paths[m]).split(".");
      let node = root;
      shown.forEach((part, i) => {
        if (!node.children.has(part)) node.children.set(part, { name: part, path: shown.slice(0, i + 1).join("."), children: new Map(), own: {}, members: new Set(), weights: 0, order: order++ });
        node = node.children.get(part);
        node.members.add(real.slice(0, i + 1).join("."));
      });
      node.has = true;
      node.own[phase] = (node.own[phase] || 0) + compute;
      node.own.communication = (node.own.communication || 0) + communication;
      // Each phase states the weights that it uses; forward's are the module's own.
      const before = held.get(m) || 0;
      if (phase === "forward" ? weight !== before : !held.has(m)) { node.weights += weight - before; held.set(m, weight); }
    }
    const finish = (node) => {
      let children = [...node.children.values()].map(finish);
      node.sum = { ...node.own };
      for (const child of children) {
        for (const [k, v] of Object.entries(child.sum)) node.sum[k] = (node.sum[k] || 0) + v;
        node.weights += child.weights;
      }
      node.forward = (node.sum.forward || 0) + (node.sum.recompute || 0);
      node.backward = node.sum.backward || 0;
      node.communication = node.sum.communication || 0;
      node.total = Object.values(node.sum).reduce((a, b) => a + b, 0);
      node.other = remainder(node);
      if (node.has && children.length) {
        const own = node.own, spent = Object.values(own).reduce((a, b) => a + b, 0);
        const itself = { name: "(itself)", path: node.path + " ", list: [], members: node.members, weights: 0, order: -1, sum: own, total: spent,
          forward: (own.forward || 0) + (own.recompute || 0), backward: own.backward || 0, communication: own.communication || 0 };
        itself.other = remainder(itself);
        if (spent > 0) children.push(itself);
      }
      if (!node.has && children.length === 1 && node.path) {
        const child = children[0];
        child.name = `${node.name}.${child.name}`;
        return child;
      }
      node.list = children;
      return node;
    };
    tree.root = finish(root);
    tree.open.clear();
    // Open the largest nodes while the table stays short enough to take in.
    const visible = [...tree.root.list];
    let rows = visible.length;
    for (;;) {
      const next = visible.filter((n) => n.list.length && !tree.open.has(n.path)).sort((a, b) => b.total - a.total)[0];
      if (!next || rows + next.list.length > 16) break;
      tree.open.add(next.path);
      visible.push(...next.list);
      rows += next.list.length;
    }
    moduleTable();
  }
  function moduleTable() {
    const root = tree.root, whole = DATA.modules.whole_s || 1;
    const columns = [["name", "Module", null], ["bar", "", null], ["forward", "Forward", time], ["backward", "Backward", time], ["other", "Other", time],
      ["communication", "Exposed communication", time], ["total", "Total", time], ["share", "Share", (s) => percent(s)], ["weights", "Weights", bytes]]
      .filter(([key]) => !["forward", "backward", "other", "communication", "weights"].includes(key) || root[key] > 1e-15);
    const heading = make("tr", null, columns.map(([key, text]) => {
      if (key === "bar") return make("th", null, "");
      const on = tree.key === key;
      return make("th", { "aria-sort": on ? (tree.down ? "descending" : "ascending") : null }, make("button", {
        "data-key": key,
        onclick: () => { tree.down = tree.key === key ? !tree.down : key !== "name"; tree.key = key === "share" ? "total" : key; moduleTable(); },
      }, text + (on ? (tree.down ? " ▾" : " ▴") : "")));
    }));
    const body = [];
    const longest = Math.max(...root.list.map((n) => n.total), 1e-15);
    const walk = (nodes, depth) => {
      const sorted = [...nodes].sort((a, b) => (tree.key === "name" ? a.order - b.order : a[tree.key] - b[tree.key]) * (tree.down ? -1 : 1));
      for (const node of sorted) {
        const open = tree.open.has(node.path), branch = node.list.length > 0;
        const toggle = () => { if (open) tree.open.delete(node.path); else tree.open.add(node.path); moduleTable(); };
        const count = node.members.size > 1 ? make("span", { class: "times", title: `${node.members.size} modules added up` }, ` ×${node.members.size}`) : null;
        const name = make("td", { class: "name", title: node.path, style: { paddingLeft: 4 + depth * 18 + "px" } },
          branch ? make("button", { class: "toggle", "data-key": "of " + node.path, onclick: toggle, "aria-expanded": open, "aria-label": `Parts of ${node.name}` }, open ? "▾" : "▸") : make("span", { class: "toggle" }, ""),
          node.name || "(no module)", count);
        const segments = [["forward", node.sum.forward], ["recompute", node.sum.recompute], ["backward", node.sum.backward], ["optimizer", node.other], ["communication", node.communication]];
        const bar = make("td", { class: "bar" }, make("div", { class: "stack" }, segments.filter(([, s]) => s > 0).map(([c, s]) =>
          make("i", { style: { width: s / longest * 100 + "%", background: css(c) } }))));
        body.push(make("tr", null, name, bar, columns.slice(2).map(([key, , format]) =>
          make("td", null, key === "share" ? percent(node.total / whole) : node[key] > 0 ? format(node[key]) : "-"))));
        if (open) walk(node.list, depth + 1);
      }
    };
    walk(root.list, 0);
    refill("modules-table", make("thead", null, heading), make("tbody", null, body));
  }
  function modules() {
    const M = DATA.modules;
    if (!M.rows.length) { $("modules").hidden = true; return; }
    if (M.paths.every((p, i) => p === M.folded[i])) $("fold-label").hidden = true;
    const stages = new Set(DATA.devices.map((d) => d.stage)).size;
    $("modules-lead").textContent = "Time per iteration on " + (stages > 1 ? "one device of each stage; shares are of the time of all stages. " : "one device; shares are of the iteration. ")
      + (M.rows.some((r) => r[3] > 0) ? "Communication counts where nothing was computed meanwhile. " : "") + "A module's row includes everything inside it.";
    const used = new Set(M.rows.map((r) => r[1]));
    const entries = PHASES.filter((p) => used.has(p)).map((p) => [css(p), p]);
    if (M.rows.some((r) => r[3] > 0)) entries.push([css("communication"), "exposed communication"]);
    legend("modules-legend", entries);
    $("fold").onchange = grow;
    if (M.paths.every((p) => !p.includes("."))) $("expand").hidden = $("collapse").hidden = true;
    $("expand").onclick = () => { const all = (n) => { if (n.list.length) { tree.open.add(n.path); n.list.forEach(all); } }; tree.root.list.forEach(all); moduleTable(); };
    $("collapse").onclick = () => { tree.open.clear(); moduleTable(); };
    grow();
  }

  // ---------------------------------------------------------------- tables

  // columns: [heading, value of a row to sort by, text of a row, left-aligned, explanation]
  function table(id, columns, rows, state) {
    const sorted = [...rows].sort((a, b) => {
      const [u, v] = [columns[state.at][1](a), columns[state.at][1](b)];
      return (u < v ? -1 : u > v ? 1 : 0) * (state.down ? -1 : 1);
    });
    const heading = make("tr", null, columns.map(([text, , , left, why], i) => make("th", { class: left ? "left" : null, title: why || null, "aria-sort": state.at === i ? (state.down ? "descending" : "ascending") : null },
      text && make("button", { "data-key": i, onclick: () => table(id, columns, rows, { ...state, at: i, down: state.at === i ? !state.down : !left }) },
        text + (state.at === i ? (state.down ? " ▾" : " ▴") : "")))));
    const most = state.all ? sorted.length : Math.min(sorted.length, 12);
    const body = sorted.slice(0, most).map((r) => make("tr", null, columns.map(([, , show, left]) => make("td", { class: left ? "left" : null }, show(r)))));
    if (most < sorted.length) body.push(make("tr", null, make("td", { colspan: columns.length },
      make("button", { onclick: () => table(id, columns, rows, { ...state, all: true }) }, `Show all ${sorted.length}`))));
    refill(id, make("thead", null, heading), make("tbody", null, body));
  }
  function communication() {
    const C = DATA.collectives, L = DATA.links;
    if (!C.length && !L.rows.length) { $("communication").hidden = true; return; }
    $("collectives").hidden = !C.length;
    $("links").hidden = !L.rows.length;
    const axes = { tp: "tensor parallel", dp: "data parallel", pp: "pipeline" };
    if (C.length) table("collectives-table", [
      ["What", (c) => c.kind, (c) => words(c.kind), true],
      ["Along", (c) => c.axis, (c) => axes[c.axis] || c.axis, true, "Axis of the mesh of ranks"],
      ["Ranks", (c) => c.group_size, (c) => number(c.group_size)],
      ["Bytes per call", (c) => c.bytes, (c) => bytes(c.bytes), false, "The full buffer of one call"],
      ["Calls", (c) => c.count, (c) => number(c.count)],
      ["Time", (c) => c.seconds, (c) => time(c.seconds), false, "All calls together"],
      ["Per call", (c) => c.seconds / (c.count || 1), (c) => time(c.seconds / (c.count || 1))],
      ["Bytes / time", (c) => c.bytes * c.count / c.seconds, (c) => (c.seconds > 0 ? rate(c.bytes * c.count / c.seconds) : "-"), false, "Bytes of a call over its time (NCCL's algorithm bandwidth)"],
      ["Algorithm", (c) => c.algorithm, (c) => [c.algorithm, c.protocol].filter(Boolean).join(", ") || "-", true],
    ], C, { at: 5, down: true });
    if (!L.rows.length) return;
    $("links-lead").textContent = `${number(L.carrying)} of ${number(L.of)} links carry something. Busy is the share of the run that a link would need to carry its bytes at full speed.`;
    const share = (l) => (L.seconds > 0 ? l[3] / L.seconds : 0);
    table("links-table", [
      ["Link", (l) => l[0], (l) => l[0], true],
      ["Carried", (l) => l[1], (l) => bytes(l[1])],
      ["Bandwidth", (l) => (l[2] === null ? Infinity : l[2]), (l) => rate(l[2])],
      ["Busy", share, (l) => percent(share(l))],
      ["", share, (l) => make("div", { class: "stack", style: { minWidth: "120px", background: css("idle") } }, make("i", { style: { width: Math.min(100, share(l) * 100) + "%", background: css("communication") } })), true],
    ], L.rows, { at: 3, down: true });
  }
  function basis() {
    $("sources").replaceChildren(...DATA.sources.map((s) => make("li", null, s)));
    $("about").replaceChildren(...DATA.about.filter(([, pairs]) => pairs.length).map(([name, pairs]) => make("div", null, make("h3", null, name),
      make("dl", null, pairs.flatMap(([k, v, depth]) => [make("dt", { style: { paddingLeft: depth * 12 + "px" } }, k), make("dd", null, v)])))));
  }

  function everything() { cards(); breakdown(); memory(); energy(); modules(); communication(); basis(); }
  everything();
  timeline();
  let resizing = 0;
  addEventListener("resize", () => { cancelAnimationFrame(resizing); resizing = requestAnimationFrame(() => { if (lanes.length) size(); if (DATA.tracks.length) memoryChart(); if (DATA.energy) powerChart(); }); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { everything(); if (lanes.length) shade(); });
  document.documentElement.dataset.ready = "yes";
})();
