//! Attachments in the text format of OpenMetrics, for a collector that reads files or runs programs.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::super::attached::AttachStatus;
use super::super::open_metrics::{self, family};
use crate::target::meter::Work;

/// All of them.
pub(super) fn text(attachments: Vec<AttachStatus>) -> Result<String, fmt::Error> {
    open_metrics::text(Snapshot(attachments))
}

#[derive(Debug)]
struct Snapshot(Vec<AttachStatus>);

/// A value of each attachment that has it: its type, name and help, and where it comes from.
type OfAttachment = (MetricType, &'static str, &'static str, fn(&AttachStatus) -> Option<u64>);

const OF_ATTACHMENTS: [OfAttachment; 13] = [
    (MetricType::Gauge, "attachment_connected", "Whether the volume can be reached.", |status| {
        Some(status.volume.is_connected.into())
    }),
    (MetricType::Gauge, "attachment_clients", "Programs that have it open.", |status| {
        Some(status.clients as u64)
    }),
    (
        MetricType::Gauge,
        "attachment_unflushed_bytes",
        "Bytes that were acknowledged and are not durable.",
        |status| Some(status.volume.unflushed),
    ),
    (
        MetricType::Gauge,
        "attachment_failed",
        "Whether a write has failed after it was acknowledged.",
        |status| Some(status.volume.failure.is_some().into()),
    ),
    (
        MetricType::Gauge,
        "attachment_lost_writes",
        "Acknowledged writes that are nowhere any more.",
        |status| Some(status.volume.lost),
    ),
    (
        MetricType::Gauge,
        "attachment_journal_used_bytes",
        "Bytes of the journal that are in use.",
        |status| Some(status.volume.journal.as_ref()?.used),
    ),
    (
        MetricType::Gauge,
        "attachment_journal_size_bytes",
        "Bytes that the journal has room for.",
        |status| Some(status.volume.journal.as_ref()?.size),
    ),
    (
        MetricType::Gauge,
        "attachment_journal_unsent_changes",
        "Changes that the volume may lack.",
        |status| Some(status.volume.journal.as_ref()?.unsent),
    ),
    (
        MetricType::Gauge,
        "attachment_journal_oldest_seconds",
        "How long the volume has lacked the oldest of them.",
        |status| Some(status.volume.journal.as_ref()?.oldest.unwrap_or(0)),
    ),
    (
        MetricType::Gauge,
        "attachment_round_trip_microseconds",
        "The smoothed round trip to the server.",
        |status| Some(status.path.as_ref()?.round_trip_us),
    ),
    (
        MetricType::Counter,
        "attachment_segments_sent_again",
        "TCP segments that had to be sent again by the connection there is.",
        |status| Some(status.path.as_ref()?.sent_again),
    ),
    (MetricType::Gauge, "attachment_in_flight", "Requests that have no answer yet.", |status| {
        Some(status.activity.in_flight)
    }),
    (MetricType::Counter, "attachment_failed_requests", "Requests that failed.", |status| {
        Some(status.activity.failed)
    }),
];

/// A count of each attachment and kind of request.
type OfKind = (&'static str, &'static str, fn(&Work) -> u64);

const OF_KINDS: [OfKind; 2] = [
    ("attachment_requests", "Requests that have ended.", |work| work.commands),
    ("attachment_bytes", "Bytes of data of requests that have succeeded.", |work| work.bytes),
];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (kind, name, help, value) in OF_ATTACHMENTS {
            let with = self.0.iter().filter_map(|status| Some((labels(status), value(status)?)));
            family(&mut encoder, kind, name, help, with)?;
        }
        for (name, help, value) in OF_KINDS {
            let samples = self.0.iter().flat_map(|status| {
                let [one, two] = labels(status);
                let works = &status.activity;
                [("read", &works.reads), ("write", &works.writes), ("other", &works.others)]
                    .map(|(kind, work)| ([one, two, ("kind", kind)], value(work)))
            });
            family(&mut encoder, MetricType::Counter, name, help, samples)?;
        }
        Ok(())
    }
}

/// What tells an attachment from others: one volume can be attached twice to be read.
fn labels(status: &AttachStatus) -> [(&str, &str); 2] {
    [("attachment", &status.attachment), ("socket", &status.socket)]
}
