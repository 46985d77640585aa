//! The record of a wait: what a process publishes of it in the memory of its node.
//! [`crate::waiting`] fills and reads it.

/// The longest text of a wait.
pub(crate) const TEXT_MAX: usize = 192;
/// Words before the text.
pub(crate) const WORDS: usize = 7;

/// The text of the wait of a service for its next request: it is idle, and not waiting for anybody.
pub(crate) const IDLE: &str = "work of a service";

/// A published wait, as words and text. The last word is the length of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaitRecord {
    pub(crate) words: [u64; WORDS],
    pub(crate) text: Vec<u8>,
}
