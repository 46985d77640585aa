//! The text form of choices and numbers, in settings and in workflows.

use crate::protocol::Policy;
use std::fmt;
use std::str::FromStr;

/// A number of steps, written with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps(pub u64);

impl Steps {
    /// Its form, for messages.
    pub const FORM: &str = "a number of steps, like \"4 steps\"";
}

impl FromStr for Steps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text
            .strip_suffix("steps")
            .or_else(|| text.strip_suffix("step"));
        let number = number.and_then(|number| number.trim().parse().ok());
        number
            .map(Steps)
            .ok_or_else(|| format!("`{text}` is not {}", Self::FORM))
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} steps", self.0)
    }
}

impl Policy {
    /// Its form, for messages.
    pub const FORM: &str = "block, drop_oldest, drop_newest, latest, every N or spill";
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let every = || text.strip_prefix("every ")?.trim().parse().ok();
        match text {
            "block" => Ok(Policy::Block),
            "drop_oldest" => Ok(Policy::DropOldest),
            "drop_newest" => Ok(Policy::DropNewest),
            "latest" => Ok(Policy::Latest),
            "spill" => Ok(Policy::Spill),
            _ => every()
                .filter(|every| *every > 0)
                .map(Policy::Every)
                .ok_or_else(|| format!("`{text}` is not one of {}", Self::FORM)),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Block => f.write_str("block"),
            Policy::DropOldest => f.write_str("drop_oldest"),
            Policy::DropNewest => f.write_str("drop_newest"),
            Policy::Latest => f.write_str("latest"),
            Policy::Spill => f.write_str("spill"),
            Policy::Every(every) => write!(f, "every {every}"),
        }
    }
}

/// Optional values as text: for `#[serde(with)]`.
pub mod text {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;
    use std::fmt::Display;
    use std::str::FromStr;

    /// Writes the value with [`Display`].
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }

    /// Reads the value with [`FromStr`].
    ///
    /// # Errors
    /// Those of the deserializer, and of the text.
    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Some).map_err(D::Error::custom)
    }
}
