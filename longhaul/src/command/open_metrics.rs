//! Metrics in the text format of OpenMetrics.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// All that `collector` tells, with the prefix of this program.
pub(super) fn text(collector: impl Collector) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("longhaul");
    registry.register_collector(Box::new(collector));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// A gauge or counter with its samples. The name of a counter gets `_total`.
pub(super) fn family<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    kind: MetricType,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in samples {
        let mut sample = family.encode_family(&labels)?;
        match kind {
            MetricType::Counter => sample.encode_counter::<NoLabelSet, _, u64>(&value, None)?,
            _ => sample.encode_gauge(&value)?,
        }
    }
    Ok(())
}
