//! The report: every number with its conditions.

use std::fmt::Write;

use crate::bare_loop::BareLoop;
use crate::bench::{Figures, Row};
use crate::copy::Copies;
use crate::sessions::{SessionLoad, Stalled};
use crate::{Bench, Failure};

/// All results; those that were not wanted are missing.
pub(crate) struct Measured {
    pub(crate) rows: Vec<Row>,
    pub(crate) floors: Vec<BareLoop>,
    pub(crate) sessions: Option<(Vec<SessionLoad>, Stalled)>,
    pub(crate) copies: Option<Copies>,
}

/// They as a Markdown page.
pub(crate) fn markdown(options: &Bench, measured: &Measured) -> Result<String, Failure> {
    let mut page = String::from(HEAD);
    writeln!(page, "Processor: {}. Kernel {}.", processor()?, kernel()?)?;
    writeln!(
        page,
        "Medians of {} alternating rounds of {} s each. Load of the machine when it was done: {}.\n",
        options.rounds,
        options.seconds,
        load()?
    )?;
    target(&mut page, &measured.rows)?;
    if !measured.floors.is_empty() {
        floors(&mut page, &measured.floors)?;
    }
    if let Some((crowds, stalled)) = &measured.sessions {
        sessions(&mut page, crowds)?;
        beside_stalled(&mut page, stalled)?;
    }
    if let Some(copies) = &measured.copies {
        copied(&mut page, copies)?;
    }
    Ok(page)
}

const HEAD: &str = "\
# Benchmarks

`make bench` measures Longhaul beside tgt (Debian's package) in one run and writes this page. Absolute
figures belong to one machine; the ratios are what to compare. The target is pinned to one core and the
client to the other, over loopback, so the client is often the limit: the processor time a request costs
the target says more than the rate.

";

fn target(page: &mut String, rows: &[Row]) -> Result<(), Failure> {
    writeln!(page, "## Target beside tgt\n")?;
    writeln!(
        page,
        "tgt and \"file\" serve a file of 1 GiB on tmpfs without holes; \"memory\" is `memory:1024M`, \
         written once before. The client is named in the first column. CPU is the target's, in microseconds \
         per request.\n"
    )?;
    writeln!(
        page,
        "| load | tgt /s | file /s | ratio | memory /s | ratio | tgt CPU | file CPU | memory CPU |\n\
         |---|---|---|---|---|---|---|---|---|"
    )?;
    for Row { load, tgt, file, memory, .. } in rows {
        writeln!(page, "| {load} | {} |", beside_tgt(tgt, file, memory))?;
    }
    Ok(())
}

/// The columns of rates, ratios and processor time.
fn beside_tgt(tgt: &Figures, file: &Figures, memory: &Figures) -> String {
    let ratio = |ours: &Figures| ours.per_second / tgt.per_second;
    format!(
        "{:.0} | {:.0} | **{:.2}** | {:.0} | **{:.2}** | {:.1} | {:.1} | {:.1}",
        tgt.per_second,
        file.per_second,
        ratio(file),
        memory.per_second,
        ratio(memory),
        tgt.cpu_us,
        file.cpu_us,
        memory.cpu_us,
    )
}

fn floors(page: &mut String, floors: &[BareLoop]) -> Result<(), Failure> {
    writeln!(page, "\n## What the bytes alone cost\n")?;
    writeln!(
        page,
        "Loops that know neither iSCSI nor SCSI, at depth 8, at random places of 1 GiB on tmpfs or in memory; \
         microseconds of the serving side's processor for each request.\n"
    )?;
    writeln!(page, "| loop | block | CPU |\n|---|---|---|")?;
    for BareLoop { what, block, cpu_us } in floors {
        writeln!(page, "| {what} | {} KiB | {cpu_us:.1} |", block >> 10)?;
    }
    Ok(())
}

fn sessions(page: &mut String, crowds: &[SessionLoad]) -> Result<(), Failure> {
    writeln!(page, "\n## Many sessions\n")?;
    writeln!(
        page,
        "Each session is an iscsi-perf that reads 4 KiB at random at depth 8; rates are those of all \
         together. The clients share one core, and so does the target, but for the last column: there it has \
         both, and the column says what part of its time its busiest thread had.\n"
    )?;
    writeln!(
        page,
        "| sessions | tgt /s | file /s | ratio | memory /s | ratio | tgt CPU | file CPU | memory CPU | busiest |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    )?;
    for SessionLoad { sessions, tgt, file, memory, busiest } in crowds {
        let columns = beside_tgt(tgt, file, memory);
        writeln!(page, "| {sessions} | {columns} | {:.0} % |", busiest * 100.0)?;
    }
    Ok(())
}

fn beside_stalled(page: &mut String, stalled: &Stalled) -> Result<(), Failure> {
    let Stalled { alone, beside, memory } = stalled;
    writeln!(
        page,
        "\nA session that reads 4 KiB at depth 8 from the file, alone: {:.0}/s. Beside eight that have asked \
         for 256 KiB at depth 32 and take nothing: {:.0}/s, **{:.2}** of that. The target had {:.0} MiB at \
         most.",
        alone.per_second,
        beside.per_second,
        beside.per_second / alone.per_second,
        *memory as f64 / f64::from(1 << 20),
    )?;
    Ok(())
}

fn copied(page: &mut String, copies: &Copies) -> Result<(), Failure> {
    let mb = |rate: f64| rate / 1e6;
    writeln!(page, "\n## Copy to an encrypted volume beside a plain one\n")?;
    writeln!(
        page,
        "`longhaul copy` of 1 GiB of noise between a file on tmpfs and `memory:` behind `longhaul serve`, \
         flushed; target on one core, client on both. The whole command is timed; the pass-phrase is one \
         that is cheap to derive the key from.\n"
    )?;
    writeln!(page, "| direction | plain MB/s | encrypted MB/s | ratio |\n|---|---|---|---|")?;
    for (way, plain, encrypted) in [
        ("in", copies.plain_in, copies.encrypted_in),
        ("out", copies.plain_out, copies.encrypted_out),
    ] {
        writeln!(
            page,
            "| {way} | {:.0} | {:.0} | **{:.2}** |",
            mb(plain),
            mb(encrypted),
            encrypted / plain
        )?;
    }
    Ok(())
}

fn processor() -> Result<String, Failure> {
    let info = std::fs::read_to_string("/proc/cpuinfo")?;
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let cores = info.lines().filter(|line| line.starts_with("processor")).count();
    Ok(format!("{}, {cores} cores", model.trim_start_matches(['\t', ' ', ':'])))
}

/// How many want a processor, on average over a minute: with two cores, more than two is not quiet.
fn load() -> Result<String, Failure> {
    let average = std::fs::read_to_string("/proc/loadavg")?;
    Ok(average.split(' ').next().ok_or("an empty /proc/loadavg")?.to_owned())
}

fn kernel() -> Result<String, Failure> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned())
}
