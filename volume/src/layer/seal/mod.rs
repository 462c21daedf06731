//! Encryption at rest: LUKS2 payloads, sector by sector.
