//! Sorting a file over the units of a job.
//!
//! # Files
//! `part` (a unit's part: read, sort, check, write) · `lines`, `words` (the kinds of records) ·
//! `checksum` (the same records?) · `file` (borders of parts)

mod checksum;
mod file;
mod lines;
mod part;
mod words;

pub use checksum::Checksum;
pub use lines::{Cut, Lines};
pub use part::{Part, Records};
pub use words::Words;
