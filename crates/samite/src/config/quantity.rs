//! Sizes, times and rates that are written with a unit: "8 KiB", "50 ms", "1 Gbit/s", or "auto".

use samite_mem::Bytes;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

/// A length of time, written with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

impl Span {
    /// The longest that can be written: a clock can count this far ahead.
    const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

    /// Creates a span of this length.
    pub const fn new(duration: Duration) -> Self {
        Self(duration)
    }

    /// Creates a span of this many seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Returns the length.
    pub const fn get(self) -> Duration {
        self.0
    }
}

/// Bytes per second, written with a unit, or the word `unlimited`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rate(Option<u64>);

impl Rate {
    /// Returns the number of bytes per second; `None`: there is no limit.
    pub const fn get(self) -> Option<u64> {
        self.0
    }
}

/// A value, or the word `auto` for one that Samite determines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Auto<T> {
    /// Samite determines the value.
    #[default]
    Auto,
    /// This value.
    Is(T),
}

impl<T> Auto<T> {
    /// Returns the value that was set, if any.
    pub fn set(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Is(value) => Some(value),
        }
    }
}

/// The form of a value, for messages.
pub(super) trait Form {
    const FORM: &'static str;
}

impl Form for Bytes {
    const FORM: &'static str = Bytes::FORM;
}

impl Form for Span {
    const FORM: &'static str = "a time with its unit, like \"50 ms\"";
}

impl Form for Rate {
    const FORM: &'static str = "a rate, like \"125 MB/s\", \"1 Gbit/s\" or \"unlimited\"";
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unlimited" {
            return Ok(Self(None));
        }
        let size = |text: &str| text.parse::<Bytes>().ok().map(Bytes::get);
        let rate = text.trim_end().strip_suffix("/s").and_then(|amount| {
            match amount.trim_end().strip_suffix("bit") {
                Some(bits) => size(&format!("{bits}B")).map(|bits| bits / 8),
                None => size(amount),
            }
        });
        match rate {
            Some(rate) => Ok(Self(Some(rate))),
            None => Err(format!("`{text}` is not {}", Self::FORM)),
        }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let spelt = text.ends_with(|last: char| last.is_ascii_alphabetic());
        let span = spelt.then(|| humantime::parse_duration(text).ok());
        match span.flatten() {
            Some(span) if span > Self::LONGEST => Err(format!("`{text}` is longer than a year")),
            Some(span) => Ok(Self(span)),
            None => Err(format!("`{text}` is not {}", Self::FORM)),
        }
    }
}

impl<T: FromStr<Err = String>> FromStr for Auto<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse()
            .map(Self::Is)
            .map_err(|error| format!("{error} or \"auto\""))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("unlimited"),
            Some(rate) => write!(f, "{}/s", Bytes::new(rate)),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Auto<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Is(value) => value.fmt(f),
        }
    }
}

/// Parses a value from text; for anything else, the error states the expected form.
pub(super) struct FromText<T>(pub(super) &'static str, pub(super) PhantomData<T>);

impl<T: FromStr<Err = String>> Visitor<'_> for FromText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(FromText(Self::FORM, PhantomData))
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(FromText(Self::FORM, PhantomData))
    }
}

impl<'de, T: FromStr<Err = String> + Form> Deserialize<'de> for Auto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(FromText(T::FORM, PhantomData))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<T: fmt::Display> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for nanos in [
            0,
            1,
            999,
            1_000,
            50_000_000,
            1_500_000_000,
            90_000_000_000,
            u64::from(u32::MAX),
        ] {
            let span = Span::new(Duration::from_nanos(nanos));
            assert_eq!(span.to_string().parse(), Ok(span), "{span}");
        }
        assert_eq!("auto".parse(), Ok(Auto::<Bytes>::Auto));
        assert_eq!("1 GiB".parse(), Ok(Auto::Is(Bytes::new(1 << 30))));
    }

    #[test]
    fn rates_are_in_bytes_or_bits() {
        for (text, bytes) in [
            ("125MB/s", Some(125_000_000)),
            ("125 MB/s", Some(125_000_000)),
            ("1 Gbit/s", Some(125_000_000)),
            ("1Gbit/s", Some(125_000_000)),
            ("800 kbit/s", Some(100_000)),
            ("10 GiB/s", Some(10 << 30)),
            ("unlimited", None),
        ] {
            let rate: Rate = text.parse().expect(text);
            assert_eq!(rate.get(), bytes, "{text}");
            assert_eq!(rate.to_string().parse(), Ok(rate), "{text}");
        }
        for bad in ["125", "125 MB", "125/s", "auto", "Gbit/s", "5 ms", ""] {
            assert!(bad.parse::<Rate>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn units_are_wanted() {
        assert_eq!("50 ms".parse(), Ok(Span::new(Duration::from_millis(50))));
        assert_eq!("50ms".parse(), Ok(Span::new(Duration::from_millis(50))));
        for bad in ["8192", "8 potatoes", "", "-1 KiB"] {
            assert!(bad.parse::<Span>().is_err(), "{bad:?}");
        }
        let error = "soon".parse::<Auto<Span>>().expect_err("no time");
        assert_eq!(
            error,
            "`soon` is not a time with its unit, like \"50 ms\" or \"auto\""
        );
        assert!("1 year".parse::<Span>().is_ok());
        for long in ["13 months", "18446744073709551615s"] {
            let error = long.parse::<Span>().expect_err("no clock counts that far");
            assert!(error.ends_with("is longer than a year"), "{error}");
        }
    }
}
