use volume::store::memory::Memory;

use super::*;

const PLAN: Plan = Plan {
    settings: Settings {
        window: None,
        segments: None,
        segment: None,
        read_ahead: None,
        unsolicited: u64::MAX,
        holes: true,
        memory: 64 << 20,
    },
    time: Duration::ZERO,
    scratch: None,
    round_trip: None,
    unsolicited: None,
    encrypted: false,
};

fn bench(plan: &Plan) -> Bench<'_, impl AsyncFn() -> Option<Info>> {
    let volume = Arc::new(Memory::new(1 << 20, 512));
    Bench { plan, volume, round_trip: Duration::from_millis(16), cipher: None, path: async || None }
}

#[tokio::test]
async fn writes_stay_on_the_scratch_span() {
    let volume = Arc::new(Memory::new(8 << 20, 512));
    let scratch = Span::new(1 << 20, 2 << 20);
    let plan = Plan { scratch: Some(scratch), encrypted: true, ..PLAN };
    let found =
        measure(Arc::clone(&volume) as Arc<dyn Volume>, &plan, async || None).await.unwrap();
    let bytes = volume.read(Span::new(0, 8 << 20)).await.unwrap();
    let written = |at: usize| scratch.overlaps(Span::new(at as u64, 1)) && bytes[at] == 0x5a;
    assert!((0..bytes.len()).all(|at| bytes[at] == 0 || written(at)), "beside the scratch span");
    assert!(bytes[scratch.at as usize] == 0x5a, "nothing was written");
    // A block of which the span holds fewer than four is left out.
    let blocks = |found: &Direction| found.rows.iter().map(|row| row.block).collect::<Vec<_>>();
    assert_eq!(blocks(&found.reads), BLOCKS);
    assert_eq!(blocks(found.writes.as_ref().unwrap()), BLOCKS[..4]);
    assert!(found.cipher.is_some());
    let all = found.reads.rows.iter().flat_map(|row| [row.alone, row.pipelined]);
    assert!(all.into_iter().all(|rate| rate.measured > 0.0 && rate.predicted > 0.0));
}

/// Of a target that asks for the data of longer writes.
fn asking() -> Settings {
    Settings { unsolicited: 64 << 10, ..PLAN.settings }
}

#[test]
fn a_write_that_is_asked_for_waits_twice() {
    let plan = Plan { settings: asking(), ..PLAN };
    let bench = bench(&plan);
    let trips = |verb, block| bench.stages(verb, block, 1e8).round_trips;
    assert_eq!(trips(Verb::Write, 64 << 10), 1);
    assert_eq!(trips(Verb::Write, 65 << 10), 2);
    assert_eq!(trips(Verb::Read, 1 << 20), 1);
}

#[test]
fn bottleneck_has_a_name() {
    let slow = Cipher { rate: 1e6, processors: 2 };
    let chosen = |limit| Chosen {
        latency: None,
        rate: None,
        window: 1 << 20,
        most: 1 << 26,
        in_flight: 1 << 19,
        segment: 1 << 17,
        requests: 1024,
        limit,
    };
    let (none, link, window) = (Constraint::Unknown, Constraint::Link(1.8e6), Constraint::Window);
    let burst = Plan { settings: asking(), ..PLAN };
    for (cipher, verb, limit, held, expected) in [
        (None, Verb::Read, Limit::Connection, none, LimitedBy::LinkOrStore),
        (None, Verb::Read, Limit::Connection, link, LimitedBy::Link),
        (None, Verb::Read, Limit::Demand, link, LimitedBy::Link),
        (None, Verb::Write, Limit::Unknown, window, LimitedBy::Window),
        (Some(slow), Verb::Read, Limit::Connection, none, LimitedBy::Cipher),
        (Some(slow), Verb::Read, Limit::Connection, link, LimitedBy::Link),
        (None, Verb::Read, Limit::RoundTrips, none, LimitedBy::RoundTrips),
        (None, Verb::Read, Limit::RoundTrips, link, LimitedBy::RoundTrips),
        (None, Verb::Write, Limit::RoundTrips, none, LimitedBy::Target),
        (None, Verb::Write, Limit::Connection, none, LimitedBy::Target),
        (None, Verb::Write, Limit::Demand, none, LimitedBy::Target),
        (None, Verb::Read, Limit::Demand, none, LimitedBy::Demand),
        (None, Verb::Read, Limit::Unknown, none, LimitedBy::Unknown),
    ] {
        let mut bench = bench(&burst);
        bench.cipher = cipher;
        // Two processors are at work nine tenths of their time.
        let limited_by = bench.limited_by(verb, &chosen(limit), 1.8e6, held);
        assert_eq!(limited_by, expected, "{verb:?} {limit:?} {held:?}");
    }
    let fast = Cipher { rate: 1e9, processors: 2 };
    let mut bench = bench(&PLAN);
    assert_eq!(bench.ciphering(Verb::Read, 1 << 17, 1e8), None, "there is no cipher");
    bench.cipher = Some(fast);
    let limited_by = bench.limited_by(Verb::Read, &chosen(Limit::Connection), 1.8e6, none);
    assert_eq!(limited_by, LimitedBy::LinkOrStore, "the cipher waits");
    assert_eq!(bench.ciphering(Verb::Read, 1 << 17, 1e8), Some(1));
    assert_eq!(bench.ciphering(Verb::Write, 1 << 17, 2.5e9), Some(3));
}

/// Runs of these rates, and what the kernel and the pipeline saw of each.
fn runs<const N: usize>(seen: [(f64, Constraint, Limit); N]) -> [PipelinedRun; N] {
    seen.map(|(rate, held, limit)| PipelinedRun { rate, held, limit })
}

#[test]
fn limits_of_slower_runs_do_not_count() {
    let (none, link) = (Constraint::Unknown, Constraint::Link(1e7));
    let held = |seen: &[(f64, Constraint)]| {
        let run = |&(rate, held): &_| PipelinedRun { rate, held, limit: Limit::Unknown };
        held_at_best(&seen.iter().map(run).collect::<Vec<_>>())
    };
    assert_eq!(held(&[(1e6, link), (9.8e6, none)]), none);
    assert_eq!(held(&[(8e6, link), (9.8e6, none)]), none);
    assert_eq!(held(&[(1e6, none), (9.8e6, link), (1e7, none)]), link);
    assert_eq!(held(&[]), none);
}

#[test]
fn full_link_is_named_beside_a_run_whose_program_found_more_read_ahead() {
    let (none, link) = (Constraint::Unknown, Constraint::Link(1.2e6));
    // As measured at 10 Mbit/s: what had been read ahead comes on top of what the link carried.
    let seen = runs([
        (1.2e6, link, Limit::Connection),
        (1.17e6, link, Limit::Connection),
        (1.34e6, none, Limit::Unknown),
    ]);
    assert_eq!(held_at_best(&seen), link);
}

#[test]
fn pipeline_that_tries_more_at_the_end_does_not_hide_that_the_connection_was_full() {
    let none = Constraint::Unknown;
    let (full, growing, asked) = (Limit::Connection, Limit::Unknown, Limit::Demand);
    let limit = |seen: [(f64, Limit); 3]| {
        limit_at_best(&runs(seen.map(|(rate, limit)| (rate, none, limit))))
    };
    assert_eq!(limit([(1e6, full), (1e6, asked), (1e6, growing)]), full);
    assert_eq!(limit([(1e5, full), (1e6, asked), (1e6, growing)]), growing, "of a slower run");
    assert_eq!(limit([(1e6, full), (1e6, full), (1e6, asked)]), asked, "the last one knows");
    assert_eq!(limit_at_best(&[]), growing);
}

#[test]
fn the_picture_has_a_line_for_each_rate_and_no_markup_from_names() {
    let rate = |measured| Rate { predicted: 2.0 * measured, measured };
    let row = |block, measured| Row { block, alone: rate(measured), pipelined: rate(1e8) };
    let direction = || Direction {
        best: 1e8,
        link: None,
        rows: vec![row(4096, 1e5), row(65_536, 1e7)],
        segment: 65_536,
        in_flight: 1 << 20,
        window: 2 << 20,
        ciphering: None,
        limited_by: LimitedBy::Link,
    };
    let found = Findings {
        round_trip_us: 16_000,
        smallest_read_us: 16_100,
        cipher: None,
        unsolicited: None,
        reads: direction(),
        writes: Some(direction()),
    };
    let svg = picture("<name>", &found);
    assert_eq!(svg.matches("<polyline").count(), 8);
    assert!(svg.contains("&lt;name&gt;") && !svg.contains("<name>"));
    assert!(svg.contains(">64K<") && svg.contains(">100 kB/s<"));
    let whole = svg.matches("<g ").count() == svg.matches("</g>").count();
    assert!(whole && svg.ends_with("</svg>\n"));
}
