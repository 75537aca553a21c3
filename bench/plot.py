"""Line charts as SVG with the standard library alone. The colours suit light and dark pages."""

import math

COLOURS = ["#2f7d4f", "#b3541e", "#3b6fb6", "#8a5aa5"]
WIDTH, HEIGHT, LEFT, GAP, TOP = 460, 300, 70, 60, 56


class Axis:
    """A logarithmic axis from `low` to `high`, over pixels `begin` to `end`."""

    def __init__(self, values, begin, end):
        values = [value for value in values if value > 0]
        self.low = 10 ** math.floor(math.log10(min(values)))
        self.high = 10 ** math.ceil(math.log10(max(values)))
        self.begin, self.end = begin, end

    def at(self, value):
        part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.begin + part * (self.end - self.begin)

    def ticks(self):
        return [10 ** n for n in range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)]


def panel(left, title, series):
    """One chart: `series` are tuples of name, colour, dashed, points (x, y)."""
    bottom = TOP + HEIGHT
    x = Axis([x for *_, points in series for x, _ in points], left, left + WIDTH)
    y = Axis([y for *_, points in series for _, y in points], bottom, TOP)
    out = [f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{title}</text>']
    for tick in x.ticks():
        out.append(f'<line x1="{x.at(tick):.1f}" x2="{x.at(tick):.1f}" y1="{TOP}" y2="{bottom}" stroke="#8884"/>')
        out.append(f'<text x="{x.at(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick:,.0f}</text>')
    for tick in y.ticks():
        out.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y.at(tick):.1f}" y2="{y.at(tick):.1f}" stroke="#8884"/>')
        out.append(f'<text x="{left - 8}" y="{y.at(tick) + 4:.1f}" text-anchor="end">{tick:,g}</text>')
    out.append(f'<text x="{left + WIDTH / 2}" y="{bottom + 38}" text-anchor="middle">reads offered per second</text>')
    for _, colour, dashed, points in series:
        line = " ".join(f"{x.at(px):.1f},{y.at(py):.1f}" for px, py in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
    return out


def latency_over_rate(points, path):
    """Latency (p50, p99) and outstanding reads of each disk, over the rate of reads."""
    latency, outstanding, legend = [], [], []
    for number, (name, rows) in enumerate(points.items()):
        colour = COLOURS[number]
        for field, dashed in (("p50_us", False), ("p99_us", True)):
            latency.append((name, colour, dashed, [(row["rate"], row[field]) for row in rows]))
        outstanding.append((name, colour, False, [(row["rate"], row["outstanding"]) for row in rows]))
        begin = LEFT + number * 240
        legend.append(f'<line x1="{begin}" x2="{begin + 24}" y1="16" y2="16" stroke="{colour}" stroke-width="3"/>')
        legend.append(f'<text x="{begin + 30}" y="20">{name}</text>')
    right = LEFT + WIDTH + GAP + LEFT // 2
    body = legend + panel(LEFT, "Latency in us: p50, and p99 dashed", latency) + panel(right, "Outstanding reads", outstanding)
    width, height = right + WIDTH + 30, TOP + HEIGHT + 50
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" '
                    'fill="#888">\n' + "\n".join(body) + "\n</svg>\n")
