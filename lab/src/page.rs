//! The results as one page that needs nothing but itself.

use std::fmt::Write;

use longhaul::line_chart::{HEIGHT, Series, WIDTH, chart, escape};

use crate::results::{AUTO, Mode, Path, Row, TCP};
use crate::tables::{Results, Table, megabits, percent};

/// All results as HTML, plan by plan.
pub(crate) fn html(rows: Vec<Row>) -> String {
    let mut page = String::from(HEAD);
    for results in plans(rows) {
        plan(&mut page, &results);
    }
    page.push_str("</html>\n");
    page
}

/// Results of long links as a section of the page of benchmarks.
pub(crate) fn markdown(rows: Vec<Row>) -> String {
    let mut page = String::from(MARKDOWN_HEAD);
    for results in plans(rows) {
        let _ = writeln!(page, "{}\n", conditions(&results));
        for table in beside(&results).into_iter().chain(details(&results)) {
            let _ = writeln!(page, "### {}\n\n{}", table.title, table.markdown());
        }
    }
    page
}

const HEAD: &str = "\
<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<title>Longhaul: measurements on long links</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76em; margin: 2em auto; padding: 0 1em; color: #1a1a1a }
h1 { font-size: 1.6em } h2 { margin-top: 2.5em; border-bottom: 2px solid #0072b2 }
h3 { font-size: 1em; margin: 1.5em 0 .3em }
table { border-collapse: collapse; margin: .5em 0 1.5em; font-size: .9em; font-variant-numeric: tabular-nums }
td, th { border-bottom: 1px solid #ddd; padding: .25em .8em; text-align: right }
th { border-bottom: 2px solid #888; vertical-align: bottom }
td:first-child, th:first-child { text-align: left }
tr:hover td { background: #f3f8fc }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(34em, 1fr)); gap: 1em }
figure { margin: 0 } svg { width: 100%; display: block } .wide { overflow-x: auto }
summary { cursor: pointer; color: #0072b2 }
</style>
<h1>Measurements on long links</h1>
<p>One program, one request at a time, in order; a flush ends the writes and is part of the time. The link
is emulated between two network namespaces; delays are one way. \"tcp\" is one fresh TCP stream that
moves as much, its slow start included, and percentages are shares of it.</p>
";

const MARKDOWN_HEAD: &str = "\
## Long links

One request at a time, in order, by qemu-io; a flush ends the writes and is part of the time. The link is
emulated between two network namespaces (`lab link`), every packet at most 1500 bytes; delays are one way.
\"tcp\" is one fresh TCP stream that moves as many bytes, its slow start included; percentages are shares
of it. The programs at both ends and the emulator share this machine's cores.

";

/// The rows of each plan, in the order they came.
fn plans(rows: Vec<Row>) -> Vec<Results> {
    let mut plans: Vec<Results> = Vec::new();
    for row in rows {
        match plans.iter_mut().find(|plan| plan.0[0].conditions.plan == row.conditions.plan) {
            Some(plan) => plan.0.push(row),
            None => plans.push(Results(vec![row])),
        }
    }
    plans
}

fn plan(page: &mut String, results: &Results) {
    let name = &results.0[0].conditions.plan;
    // Writing to a String cannot fail.
    let _ = writeln!(
        page,
        "<h2 id=\"{0}\">{0}</h2>\n<p>{1}</p>",
        escape(name),
        escape(&conditions(results))
    );
    page.push_str("<div class=\"charts\">\n");
    for chart in charts(results) {
        let _ = writeln!(page, "<figure>{chart}</figure>");
    }
    page.push_str("</div>\n");
    for table in beside(results) {
        page.push_str(&html_table(&table));
    }
    let details = details(results);
    if !details.is_empty() {
        page.push_str("<details><summary>Every figure, and what it cost</summary>\n");
        details.iter().for_each(|table| page.push_str(&html_table(table)));
        page.push_str("</details>\n");
    }
}

/// What all of a plan was measured under.
fn conditions(results: &Results) -> String {
    let list = |values: Vec<String>| values.join(", ");
    let rates = results.each(|row| format!("{} Mbit/s", megabits(row.conditions.path.rate)));
    let losses =
        results.each(|row| format!("{} %", percent(row.conditions.path.losses_per_million)));
    let loads = results.each(|row| row.conditions.load_percent);
    let load = |load: Option<&u64>| load.map_or(0.0, |load| *load as f64 / 100.0);
    format!(
        "Link by {}, {}, loss {}, seed {}; volumes are files in memory; commit {}; load of the machine when a \
         peer was started {:.1} to {:.1}.",
        list(results.each(|row| row.conditions.path.by.name().to_owned())),
        list(rates),
        list(losses),
        list(results.each(|row| row.conditions.seed.to_string())),
        list(results.each(|row| row.conditions.commit.clone())),
        load(loads.first()),
        load(loads.last()),
    )
}

/// The tables that say what a plan is for.
fn beside(results: &Results) -> Vec<Table> {
    let has = |mode| results.0.iter().any(|row| row.measured.mode == mode);
    let fixed = |mode| {
        results.0.iter().any(|row| row.conditions.in_flight != AUTO && row.measured.mode == mode)
    };
    let mut tables = Vec::new();
    if fixed(Mode::Write) {
        tables.push(results.writes_of_the_papers());
    }
    if fixed(Mode::Read) {
        tables.push(results.reads_of_the_papers());
    }
    if has(Mode::Mkfs) || has(Mode::Copy) {
        tables.push(results.uplink_of_the_papers());
    }
    if results.0.iter().any(|row| row.measured.mode == Mode::Stream && row.conditions.peer != TCP) {
        tables.push(results.sockets_of_the_papers());
    }
    for mode in [Mode::RandomRead, Mode::SyncWrite].into_iter().filter(|mode| has(*mode)) {
        tables.push(results.latency(mode));
    }
    tables
}

/// Every rate, and what it cost.
fn details(results: &Results) -> Vec<Table> {
    let mut tables = Vec::new();
    for mode in results.in_order() {
        for block in results.blocks_of(mode) {
            tables.push(results.by_path(mode, block));
        }
        tables.push(results.costs(mode));
    }
    tables
}

/// For each mode rates over block sizes, a chart for each path, or over the paths if there is one block.
fn charts(results: &Results) -> Vec<String> {
    let mut charts = Vec::new();
    for mode in results.in_order() {
        match &results.blocks_of(mode)[..] {
            [block] => charts.push(over_paths(results, mode, *block)),
            blocks => {
                for (path, name) in results.paths() {
                    charts.push(over_blocks(results, mode, blocks, path, &name));
                }
            }
        }
    }
    charts
}

fn over_blocks(results: &Results, mode: Mode, blocks: &[u64], path: Path, name: &str) -> String {
    let labels: Vec<_> = blocks.iter().map(|block| format!("{} K", block / 1024)).collect();
    let line = |peer: &str| {
        let rates = blocks
            .iter()
            .enumerate()
            .filter_map(|(place, block)| Some((place, results.rate(peer, path, mode, *block)?)));
        (peer.to_owned(), rates.collect())
    };
    let lines = results.peers().into_iter().map(line).collect();
    picture(&format!("{}, {name}", mode.name()), &labels, lines)
}

fn over_paths(results: &Results, mode: Mode, block: u64) -> String {
    let paths = results.paths();
    let labels: Vec<_> = paths.iter().map(|(_, name)| name.clone()).collect();
    let line = |peer: &str| {
        let rates = paths.iter().enumerate().filter_map(|(place, (path, _))| {
            Some((place, results.rate(peer, *path, mode, block)?))
        });
        (peer.to_owned(), rates.collect())
    };
    let lines = results.peers().into_iter().map(line).collect();
    let title = format!("{}, {} KiB, by delay one way", mode.name(), block / 1024);
    picture(&title, &labels, lines)
}

/// A peer, and its bytes a second at each place where it was measured.
type Rates = (String, Vec<(usize, f64)>);

fn picture(title: &str, labels: &[String], mut lines: Vec<Rates>) -> String {
    lines.retain(|(_, points)| !points.is_empty());
    let line = |(colour, (name, points))| Series { name, points, colour, dashed: false };
    let lines: Vec<_> = lines.into_iter().enumerate().map(line).collect();
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">{}</svg>\n",
        escape(title),
        chart(title, labels, &lines)
    )
}

fn html_table(table: &Table) -> String {
    let row = |cells: &[String], tag: &str| {
        let cells: String =
            cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let body: String = table.rows.iter().map(|cells| row(cells, "td")).collect();
    format!(
        "<h3>{}</h3>\n<div class=\"wide\"><table>\n{}{body}</table></div>\n",
        escape(&table.title),
        row(&table.head, "th")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    #[test]
    fn a_page_holds_charts_tables_and_conditions_and_loads_nothing() {
        let page = html(vec![
            example("tcp", 8000, 1 << 20, 100e6),
            example("longhaul-sealed", 8000, 65536, 96e6),
        ]);
        for part in ["<svg", "96.0 MB/s (96.0 %)", "commit abc", "1000 Mbit/s", "1.5 to 1.5"] {
            assert!(page.contains(part), "no {part} in {page}");
        }
        for outside in ["http:", "https:", "src=", "@import"] {
            assert!(!page.contains(outside), "{outside} in {page}");
        }
    }

    #[test]
    fn plans_stay_apart() {
        let mut other = example("tgt", 8000, 65536, 1e6);
        other.conditions.plan = "other".into();
        let page = html(vec![example("tgt", 8000, 65536, 2e6), other]);
        assert_eq!(page.matches("<h2 ").count(), 2);
    }
}
