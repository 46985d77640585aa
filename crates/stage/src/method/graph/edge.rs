//! An edge of the graph: its writer, its reader, and what they agree on.
//!
//! The keys, and the words of their values, are those of `[[edge]]` in a workflow file.

use super::error::GraphError;
use crate::Dtype;
use crate::method::limits;
use crate::method::words::{Steps, text};
use crate::protocol::{Limits, Policy};
use crate::space::Dims;
use samite_mem::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A program that reads a stream of another one: an `[[edge]]` of a workflow, with its parameters
/// and expressions evaluated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// The program that writes.
    pub from: String,
    /// The name of the stream in that program.
    pub stream: String,
    /// The program that reads.
    pub to: String,
    /// The name of the stream in that one.
    #[serde(rename = "as")]
    pub name: String,
    /// Which reader rank gets what.
    #[serde(default)]
    pub redistribute: Redistribution,
    /// What happens if the readers are slower; `None`: as the settings of the stream say.
    #[serde(rename = "rate", with = "text")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Maximum number of steps that may wait for the readers.
    #[serde(with = "text", default, skip_serializing_if = "Option::is_none")]
    pub limit_steps: Option<Steps>,
    /// Maximum bytes that may wait for the readers.
    #[serde(with = "text", default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<Bytes>,
    /// The operators, in the order in which they are applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<Applied>,
    /// Number of empty steps with which the reader begins.
    #[serde(default)]
    pub tokens: u64,
    /// The writer's promises.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<Promise>,
}

/// Which part of an array is a reader rank's own ([`crate::StepReader::mine`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Redistribution {
    /// None: each rank requests boxes.
    #[default]
    Box,
    /// A range of the slowest dimension; lengths differ by at most one.
    Count,
    /// Items of the slowest dimension, assigned round-robin.
    Round,
    /// A block, as cubic as possible.
    Block,
}

/// An operator of an edge, and its variables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an operator: a text, or { apply = \"…\", variables = [\"…\"] }"
)]
pub struct Applied {
    /// Its text: "mean 4". The words are those of [`super::check_operators`].
    pub apply: String,
    /// Names of the variables to which it applies, others pass unchanged; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "some_names")]
    pub variables: Vec<String>,
}

/// An array that the writer of an edge promises.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Promise {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    #[serde(serialize_with = "name_of")]
    pub dtype: Dtype,
    /// Its size; `None`: not promised.
    #[serde(flatten)]
    pub extent: Option<Extent>,
    /// How the parts of the units are arranged in the whole; `None`: not promised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
    /// It is in each step whose number is a multiple of this; other steps may contain it.
    pub every: u64,
}

/// Numbers per dimension, the slowest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// Of what each unit puts in a step.
    Block(Dims),
    /// Of the whole array.
    Shape(Dims),
}

/// How the parts of the units are arranged in the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// One after another along the slowest dimension.
    Rows,
    /// One after another along the fastest dimension.
    Columns,
    /// In all dimensions, as cubic as possible.
    Blocks,
}

impl Edge {
    /// Returns an edge with defaults: the stream has the same name in both programs.
    pub fn new(from: &str, stream: &str, to: &str) -> Edge {
        Edge {
            from: from.to_owned(),
            stream: stream.to_owned(),
            to: to.to_owned(),
            name: stream.to_owned(),
            redistribute: Redistribution::Box,
            policy: None,
            limit_steps: None,
            limit_bytes: None,
            operators: Vec::new(),
            tokens: 0,
            variables: Vec::new(),
        }
    }

    /// Returns the limits of what may wait for the readers; `None`: as the settings of the stream
    /// say.
    pub fn limits(&self) -> Option<Limits> {
        limits(
            self.limit_steps.map(|steps| steps.0),
            self.limit_bytes.map(Bytes::get),
        )
    }

    /// Returns the key in the workflow file of what only the method `graph` supports; `None` if
    /// there is nothing of that kind.
    pub fn needs_graph(&self) -> Option<&'static str> {
        if self.name != self.stream {
            Some("as")
        } else if self.redistribute != Redistribution::Box {
            Some("redistribute")
        } else if !self.operators.is_empty() {
            Some("operators")
        } else if self.tokens > 0 {
            Some("tokens")
        } else {
            None
        }
    }
}

impl Applied {
    /// Returns true if it applies to this variable.
    pub fn is_for(&self, variable: &str) -> bool {
        self.variables.is_empty() || self.variables.iter().any(|name| name == variable)
    }
}

impl From<&str> for Applied {
    /// For all variables.
    fn from(apply: &str) -> Applied {
        Applied {
            apply: apply.to_owned(),
            variables: Vec::new(),
        }
    }
}

impl fmt::Display for Edge {
    /// Writes "solver/field -> analysis/input".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Edge {
            from,
            stream,
            to,
            name,
            ..
        } = self;
        write!(f, "{from}/{stream} -> {to}/{name}")
    }
}

impl Promise {
    /// Returns the shape of the whole array, if it follows from the promise: it is promised itself,
    /// or each of `units` units puts a block and all are arranged along one dimension.
    pub fn shape(&self, units: u32) -> Option<Dims> {
        let along = |block: &Dims, dim: usize| {
            let mut shape = block.clone();
            let extent = shape.get_mut(dim)?;
            *extent = extent.checked_mul(units.into())?;
            Some(shape)
        };
        match (self.extent.as_ref()?, self.cut) {
            (Extent::Shape(shape), _) => Some(shape.clone()),
            (Extent::Block(block), _) if units == 1 => Some(block.clone()),
            (Extent::Block(block), Some(Cut::Rows)) => along(block, 0),
            (Extent::Block(block), Some(Cut::Columns)) => {
                along(block, block.len().saturating_sub(1))
            }
            (Extent::Block(_), Some(Cut::Blocks) | None) => None,
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cut::Rows => "rows",
            Cut::Columns => "columns",
            Cut::Blocks => "blocks",
        })
    }
}

/// Returns the type of that name.
///
/// # Errors
/// Unknown name.
pub(super) fn dtype(name: &str) -> Result<Dtype, GraphError> {
    let names = Dtype::ALL.map(Dtype::name);
    Dtype::from_name(name).ok_or_else(|| GraphError::word("type of numbers", name, &names))
}

fn name_of<S: Serializer>(dtype: &Dtype, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(dtype.name())
}

/// Reads the variables of an operator; an explicit list must not be empty.
fn some_names<'de, D: Deserializer<'de>>(names: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::deserialize(names)?;
    if names.is_empty() {
        return Err(D::Error::custom(
            "say which `variables` the operator is for; without the key it is for all",
        ));
    }
    Ok(names)
}

/// A promise, by the keys of the workflow file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    dtype: String,
    block: Option<Dims>,
    shape: Option<Dims>,
    cut: Option<Cut>,
    every: Option<u64>,
}

impl TryFrom<Written> for Promise {
    type Error = String;

    fn try_from(written: Written) -> Result<Promise, String> {
        let extent = match (written.block, written.shape) {
            (Some(_), Some(_)) => {
                return Err("say `block`, of each unit, or `shape`, of the whole: not both".into());
            }
            (Some(none), _) | (_, Some(none)) if none.is_empty() => {
                return Err("`block` and `shape` have at least one dimension".into());
            }
            (block, shape) => block.map(Extent::Block).or(shape.map(Extent::Shape)),
        };
        let every = written.every.unwrap_or(1);
        if every == 0 {
            let why = "the variable is in the steps that are multiples of it";
            return Err(format!("`every` must be 1 or more: {why}"));
        }
        Ok(Promise {
            name: written.name,
            dtype: dtype(&written.dtype).map_err(|error| error.to_string())?,
            extent,
            cut: written.cut,
            every,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_follows_from_blocks_along_a_dimension() {
        let promise = |extent, cut| Promise {
            name: "u".into(),
            dtype: Dtype::F64,
            extent: Some(extent),
            cut,
            every: 1,
        };
        let block = || Extent::Block(Dims::from_slice(&[4, 5]));
        let shape = |promise: Promise| promise.shape(3).map(Dims::into_vec);
        assert_eq!(shape(promise(block(), Some(Cut::Rows))), Some(vec![12, 5]));
        assert_eq!(
            shape(promise(block(), Some(Cut::Columns))),
            Some(vec![4, 15])
        );
        assert_eq!(shape(promise(block(), Some(Cut::Blocks))), None);
        let whole = Extent::Shape(Dims::from_slice(&[7]));
        assert_eq!(shape(promise(whole, None)), Some(vec![7]));
        let huge = Extent::Block(Dims::from_slice(&[u64::MAX]));
        assert_eq!(shape(promise(huge, Some(Cut::Rows))), None);
    }

    #[test]
    fn an_edge_says_what_only_a_graph_does() {
        let edge = Edge::new("a", "s", "b");
        assert_eq!(edge.needs_graph(), None);
        let tokens = Edge {
            tokens: 1,
            ..edge.clone()
        };
        assert_eq!(tokens.needs_graph(), Some("tokens"));
        let other = Edge {
            name: "t".into(),
            ..edge
        };
        assert_eq!(other.needs_graph(), Some("as"));
        assert_eq!(other.to_string(), "a/s -> b/t");
    }
}
