//! Which copy engine is cheapest at which size. Pure; the rates are measured once per host.

use serde::{Deserialize, Serialize};

/// Who copies a large private message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// Both sides, through the ring of the pair.
    Ring,
    /// The receiver, through the kernel.
    Kernel,
    /// Both sides, through the kernel.
    Cooperative,
}

/// Measured rates of the engines at one size, in bytes per microsecond (= MB/s); 0: not measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Size of the message, in bytes.
    pub bytes: u64,
    /// Through the ring.
    pub ring: f64,
    /// Kernel copy by the receiver.
    pub kernel: f64,
    /// Kernel copy by both sides.
    pub cooperative: f64,
}

/// The rates that this host measured, or a guess until it has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// The host that the figures apply to; empty for the guess.
    pub host: String,
    /// Messages up to this size are sent eagerly.
    pub eager_max: u64,
    /// Fragments of a streamed message, in bytes.
    pub stream_piece: u64,
    /// Rates, by increasing size.
    pub rates: Vec<Rate>,
}

impl Default for CostModel {
    /// Returns a guess for a current x86-64 machine with pages of 4 KiB.
    fn default() -> Self {
        let rate = |bytes, ring, kernel, cooperative| Rate {
            bytes,
            ring,
            kernel,
            cooperative,
        };
        CostModel {
            host: String::new(),
            eager_max: 16 << 10,
            stream_piece: 16 << 10,
            rates: vec![
                rate(16 << 10, 8e3, 6e3, 5e3),
                rate(64 << 10, 12e3, 13e3, 15e3),
                rate(256 << 10, 14e3, 16e3, 25e3),
                rate(1 << 20, 14e3, 16e3, 28e3),
                rate(16 << 20, 10e3, 6e3, 12e3),
            ],
        }
    }
}

impl CostModel {
    /// Returns the fastest permitted engine at the nearest measured size.
    pub fn choose(&self, bytes: u64, kernel: bool, cooperative: bool) -> Choice {
        let distance = |rate: &&Rate| {
            let (a, b) = (rate.bytes.max(1).ilog2(), bytes.max(1).ilog2());
            a.abs_diff(b)
        };
        let Some(rate) = self.rates.iter().min_by_key(distance) else {
            return Choice::Ring;
        };
        let mut best = (rate.ring, Choice::Ring);
        if kernel && rate.kernel > best.0 {
            best = (rate.kernel, Choice::Kernel);
        }
        if cooperative && rate.cooperative > best.0 {
            best = (rate.cooperative, Choice::Cooperative);
        }
        best.1
    }

    /// Returns how many bytes one side copies before it looks at anything else.
    pub fn piece(&self, bytes: u64, choice: Choice) -> u64 {
        let floor = (bytes / samite_mem::copy::cooperative::PIECES_MAX + 1).next_multiple_of(4096);
        let wanted = match choice {
            Choice::Cooperative => samite_mem::copy::cooperative::piece(bytes),
            Choice::Kernel | Choice::Ring => 1 << 20,
        };
        wanted.next_multiple_of(4096).max(floor)
    }

    /// Returns the same for a copy out of mapped memory.
    pub fn direct_piece(&self, bytes: u64) -> u64 {
        (4u64 << 20).max(self.piece(bytes, Choice::Kernel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_engine_that_may_be_used_wins() {
        let rate = Rate {
            bytes: 1 << 20,
            ring: 10.0,
            kernel: 20.0,
            cooperative: 30.0,
        };
        let model = CostModel {
            rates: vec![rate],
            ..CostModel::default()
        };
        assert_eq!(model.choose(1 << 20, true, true), Choice::Cooperative);
        assert_eq!(model.choose(1 << 20, true, false), Choice::Kernel);
        assert_eq!(model.choose(1 << 20, false, false), Choice::Ring);
    }

    #[test]
    fn pieces_never_outnumber_what_a_claim_counts() {
        let model = CostModel::default();
        for bytes in [1, 1 << 20, 3 << 30, 1 << 44] {
            for choice in [Choice::Kernel, Choice::Cooperative] {
                let pieces = u64::div_ceil(bytes, model.piece(bytes, choice));
                assert!(pieces <= samite_mem::copy::cooperative::PIECES_MAX);
            }
            assert!(
                bytes.div_ceil(model.direct_piece(bytes))
                    <= samite_mem::copy::cooperative::PIECES_MAX
            );
        }
    }
}
