//! URIs, and the chains they stand for: the only place that names both fronts and stores.
