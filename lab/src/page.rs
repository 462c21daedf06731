//! The results as one page that needs nothing but itself.

use std::fmt::Write;

use crate::results::{Mode, Row};
use crate::svg::{self, Line, escape};
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
        for table in tables(&results) {
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
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 }
td, th { border: 1px solid #bbb; padding: .2em .6em; text-align: right }
td:first-child, th:first-child { text-align: left }
svg { max-width: 44em; display: block; margin: 1em 0 }
svg text { font-size: 11px } svg .title { font-size: 13px; font-weight: bold }
svg .end { text-anchor: end } svg .mid { text-anchor: middle }
svg .grid { stroke: #ddd } svg polyline { fill: none; stroke-width: 2 }
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
    let _ = writeln!(page, "<h2>{}</h2>\n<p>{}</p>", escape(name), escape(&conditions(results)));
    for mode in results.each(|row| row.measured.mode) {
        for block in results.blocks() {
            page.push_str(&chart(results, mode, block));
        }
    }
    for table in tables(results) {
        page.push_str(&html_table(&table));
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
        "Link {}, loss {}, seed {}; volumes are files in memory; commit {}; load of the machine when a \
         peer was started {:.1} to {:.1}.",
        list(rates),
        list(losses),
        list(results.each(|row| row.conditions.seed.to_string())),
        list(results.each(|row| row.conditions.commit.clone())),
        load(loads.first()),
        load(loads.last()),
    )
}

fn tables(results: &Results) -> Vec<Table> {
    let mut tables = Vec::new();
    let modes = results.each(|row| row.measured.mode);
    for mode in &modes {
        for block in results.blocks() {
            tables.push(results.by_path(*mode, block));
        }
    }
    if modes.contains(&Mode::Write) {
        tables.push(results.writes_of_the_papers());
    }
    if modes.contains(&Mode::Read) {
        tables.push(results.reads_of_the_papers());
    }
    tables
}

fn chart(results: &Results, mode: Mode, block: u64) -> String {
    let paths = results.paths();
    let labels: Vec<_> = paths.iter().map(|(_, name)| name.clone()).collect();
    let line = |peer: &str| {
        let rates = paths.iter().enumerate().filter_map(|(place, (path, _))| {
            Some((place, results.rate(peer, *path, mode, block)? / 1e6))
        });
        Line { name: peer.to_owned(), points: rates.collect() }
    };
    let lines: Vec<_> = results.peers().into_iter().map(line).collect();
    svg::chart(&format!("{}, {} KiB", mode.name(), block / 1024), "MB/s", &labels, &lines)
}

fn html_table(table: &Table) -> String {
    let row = |cells: &[String], tag: &str| {
        let cells: String =
            cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let body: String = table.rows.iter().map(|cells| row(cells, "td")).collect();
    format!(
        "<h3>{}</h3>\n<table>\n{}{body}</table>\n",
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
        assert_eq!(page.matches("<h2>").count(), 2);
    }
}
