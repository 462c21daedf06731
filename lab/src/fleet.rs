//! What a fleet of gateways asks of its shared state, and how it comes through failures, on virtual time: the tables of
//! `docs/scale.md`.

use std::time::Duration;

use testing::fleet::{Fleet as Simulated, Outage, Report, Sharing, Storm};

use crate::Failure;

/// Which fleet.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Fleet {
    /// Gateways
    #[arg(long, default_value_t = 100)]
    gateways: usize,
    /// Racks in which they stand
    #[arg(long, default_value_t = 5)]
    racks: usize,
    /// Volumes
    #[arg(long, default_value_t = 10_000)]
    volumes: usize,
    /// Sessions, each with one volume
    #[arg(long, default_value_t = 100_000)]
    sessions: usize,
    /// Seconds of a lease
    #[arg(long, default_value_t = 5)]
    lease: u64,
    /// Volumes of a lease, each a fleet of its own; `pairs` is one lease for all volumes of two gateways
    #[arg(long, value_delimiter = ',', default_value = "pairs,100,25,1", value_parser = shape)]
    sharing: Vec<Option<usize>>,
    /// Gateways that look at a lease, but for pairs
    #[arg(long, default_value_t = 3)]
    candidates: usize,
    /// Requests per second that the shared state carries out
    #[arg(long, default_value_t = 20_000)]
    store_rate: u64,
    /// Addresses per second that the storage can shut out
    #[arg(long, default_value_t = 50)]
    fence_rate: u64,
    /// Milliseconds to open a volume
    #[arg(long, default_value_t = 50)]
    open: u64,
    /// Volumes that a gateway opens at once
    #[arg(long, default_value_t = 8)]
    opens_at_once: usize,
    /// Logins per second that a gateway carries out
    #[arg(long, default_value_t = 500)]
    login_rate: u64,
    /// The same seed, the same run
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn shape(text: &str) -> Result<Option<usize>, String> {
    match text {
        "pairs" => Ok(None),
        text => match text.parse() {
            Ok(volumes) if volumes > 0 => Ok(Some(volumes)),
            _ => Err("neither `pairs` nor a number of volumes".to_owned()),
        },
    }
}

impl Fleet {
    fn simulated(&self, volumes: Option<usize>) -> Simulated {
        let candidates = self.candidates;
        Simulated {
            gateways: self.gateways,
            racks: self.racks,
            volumes: self.volumes,
            sessions: self.sessions,
            sharing: volumes
                .map_or(Sharing::Pairs, |volumes| Sharing::Groups { volumes, candidates }),
            lease: Duration::from_secs(self.lease),
            store_rate: self.store_rate,
            fence_rate: self.fence_rate,
            open: Duration::from_millis(self.open),
            opens_at_once: self.opens_at_once,
            login_rate: self.login_rate,
            seed: self.seed,
            ..Simulated::default()
        }
    }

    fn check(&self) -> Result<(), Failure> {
        let rates = [self.store_rate, self.fence_rate, self.login_rate, self.lease];
        let numbers = [self.racks, self.volumes, self.opens_at_once, self.candidates];
        if self.gateways < 2 || rates.contains(&0) || numbers.contains(&0) {
            return Err("a fleet has two gateways or more, and no number of it is 0".into());
        }
        if rates[..3].iter().any(|rate| *rate > 1_000_000) {
            return Err("no rate is above 1,000,000 per second".into());
        }
        Ok(())
    }
}

const HEADINGS: [&str; 13] = [
    "lease for",
    "leases",
    "fails",
    "requests/s",
    "writes/s",
    "longest wait",
    "requests/s in the storm",
    "shut out",
    "all served after",
    "volume away: median, longest",
    "session away: median, longest",
    "fullest gateway: before, after, returned",
    "leases lost by running gateways: peace, storm",
];

/// Prints a table with a line for each fleet and storm.
pub(crate) fn run(wanted: &Fleet) -> Result<(), Failure> {
    wanted.check()?;
    println!("| {} |\n|{}", HEADINGS.join(" | "), "---|".repeat(HEADINGS.len()));
    for sharing in &wanted.sharing {
        for storm in [Storm::Gateway, Storm::Rack, Storm::All] {
            let report = wanted.simulated(*sharing).run(storm);
            println!("| {} |", line(*sharing, storm, &report).join(" | "));
        }
    }
    Ok(())
}

fn line(sharing: Option<usize>, storm: Storm, report: &Report) -> [String; 13] {
    let [before, after, returned] = report.imbalance;
    [
        sharing.map_or_else(|| "a pair".to_owned(), |volumes| format!("{volumes} volumes")),
        report.leases.to_string(),
        match storm {
            Storm::Gateway => "one gateway",
            Storm::Rack => "a rack",
            Storm::All => "all at once",
        }
        .to_owned(),
        format!("{:.0}", report.peace.all()),
        format!("{:.0}", report.peace.writes),
        format!("{} ms", report.peace.longest.as_millis()),
        format!("{:.0}", report.storm.all()),
        report.fences.to_string(),
        report.all_served.map_or_else(|| "never".to_owned(), seconds),
        away(&report.volumes),
        away(&report.sessions),
        format!("{before:.2}, {after:.2}, {returned:.2}"),
        format!("{}, {}", report.peace.lost, report.storm.lost),
    ]
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn away(outage: &Outage) -> String {
    format!("{}, {}", seconds(outage.median), seconds(outage.longest))
}
