//! Sizes with units: "8 KiB".

use std::fmt;
use std::str::FromStr;

/// A number of bytes, written with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

impl Bytes {
    /// The format, for messages.
    pub const FORM: &str = "a size with its unit, like \"8 KiB\"";

    /// Creates a size from a number of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A bare number is refused, because it is the usual cause of errors by a factor of 1024.
        let is_spelt = text.trim_end().ends_with(|c: char| c.is_ascii_alphabetic());
        let size = text.parse::<bytesize::ByteSize>();
        size.ok()
            .filter(|_| is_spelt)
            .map(|size| Self(size.as_u64()))
            .ok_or_else(|| format!("`{text}` is not {}", Self::FORM))
    }
}

impl fmt::Display for Bytes {
    /// In the largest unit that gives a whole number, so that nothing is rounded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let whole = |power: &usize| self.0 != 0 && self.0.trailing_zeros() as usize >= 10 * power;
        let power = (0..units.len()).rev().find(whole).unwrap_or(0);
        write!(f, "{} {}", self.0 >> (10 * power), units[power])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for bytes in [
            0,
            1,
            1023,
            1024,
            8 << 10,
            (1 << 20) + 1,
            3 << 30,
            5 << 40,
            1 << 62,
        ] {
            let text = Bytes::new(bytes).to_string();
            assert_eq!(text.parse(), Ok(Bytes::new(bytes)), "{text}");
        }
    }

    #[test]
    fn a_unit_is_wanted() {
        assert_eq!("8 KiB".parse(), Ok(Bytes::new(8192)));
        assert_eq!("8KiB".parse(), Ok(Bytes::new(8192)));
        for bad in ["8192", "8 potatoes", "", "-1 KiB"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad:?}");
        }
    }
}
