//! Transformations of an array on its way along an edge.
//!
//! An operator is lazy: for a requested box of its result, it says which box of its input it needs,
//! gets that one, and computes only the requested box. Type and shape of the result are known
//! before.
//!
//! | written | result |
//! |---|---|
//! | `as TYPE` | the same numbers as that type, as Rust's `as` converts: to integers towards zero, at the nearest end of the range |
//! | `scale X` | times X; integers become `f64` |
//! | `offset X` | plus X; integers become `f64` |
//! | `stride N` | every N-th element in each dimension, beginning with the first |
//! | `mean N` | the mean of each block of N elements in each dimension (of its existing elements at the end); integers become `f64` |
//! | `mine:NAME` | an operator of the reading program: see [`Operator`] |
//!
//! `f32` stays `f32`, computed as `f64`. Means are summed in a fixed order: a result does not
//! depend on how writers or readers cut the array.

use super::builtin::{As, Linear, Mean, Stride};
use super::edge::{Edge, dtype};
use super::error::GraphError;
use super::numbers::{Input, Kind, Tile};
use crate::Region;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A transformation of an array. A closure `Fn(f64) -> f64` is one: it maps each number to an
/// `f64`.
///
/// ```
/// use samite_stage::method::graph::{Input, Kind, Operator, Tile};
/// use samite_stage::{Dtype, Region};
///
/// /// The array upside down.
/// struct Turned;
///
/// impl Operator for Turned {
///     fn result(&self, input: &Kind) -> Result<Kind, String> {
///         match input.dtype {
///             Dtype::F64 => Ok(input.clone()),
///             other => Err(format!("it negates f64, and not {other}")),
///         }
///     }
///     fn needs(&self, input: &Kind, asked: &Region) -> Result<Region, String> {
///         let (mut lower, mut upper) = (asked.lower().to_vec(), asked.upper().to_vec());
///         (lower[0], upper[0]) = (input.shape[0] - upper[0], input.shape[0] - lower[0]);
///         Region::new(&lower, &upper).map_err(|error| error.to_string())
///     }
///     fn apply(&self, input: &Input<'_>, into: &mut Tile) -> Result<(), String> {
///         let (Some(mut from), Some(mut to)) = (input.view::<f64>(), into.view_mut::<f64>()) else {
///             return Err("it turns f64".into());
///         };
///         from.invert_axis(ndarray::Axis(0));
///         to.assign(&from);
///         Ok(())
///     }
/// }
/// ```
pub trait Operator: Send + Sync {
    /// Returns type and shape of the result for an input of this kind.
    ///
    /// # Errors
    /// Why it cannot be applied, in a sentence.
    fn result(&self, input: &Kind) -> Result<Kind, String>;

    /// Returns the box of the input from which `asked`, a non-empty box of the result, is computed.
    /// It must be inside the input.
    ///
    /// # Errors
    /// As [`Operator::result`].
    fn needs(&self, input: &Kind, asked: &Region) -> Result<Region, String>;

    /// Computes the numbers of `into`, which is a box of the result, from the box that it
    /// [needs](Operator::needs).
    ///
    /// # Errors
    /// As [`Operator::result`].
    fn apply(&self, input: &Input<'_>, into: &mut Tile) -> Result<(), String>;
}

/// The operators that the reading program has registered, by name.
pub(crate) type Registered = BTreeMap<String, Arc<dyn Operator>>;

/// An operator with its text.
#[derive(Clone)]
pub(crate) struct Written {
    pub(crate) text: String,
    pub(crate) does: Does,
}

/// The operator itself.
#[derive(Clone)]
pub(crate) enum Does {
    This(Arc<dyn Operator>),
    /// Registered by the reading program under that name.
    Mine(String),
}

/// Checks the operators of an edge: their words, and, if the edge promises variables, that the
/// variables of the operators are among them.
///
/// # Errors
/// The index of the first invalid operator, and what is wrong with it.
pub fn check_operators(edge: &Edge) -> Result<(), (usize, GraphError)> {
    let promised: Vec<&str> = edge.variables.iter().map(|it| it.name.as_str()).collect();
    for (at, operator) in edge.operators.iter().enumerate() {
        parse(&operator.apply).map_err(|error| (at, error))?;
        let mut named = operator.variables.iter().map(String::as_str);
        let stranger = named.find(|name| !promised.is_empty() && !promised.contains(name));
        if let Some(name) = stranger {
            let what = "promised variable";
            return Err((at, GraphError::word(what, name, &promised)));
        }
    }
    Ok(())
}

pub(crate) fn parse(text: &str) -> Result<Written, GraphError> {
    let wrong = |why: &str| GraphError::Argument {
        operator: text.to_owned(),
        why: why.to_owned(),
    };
    let (word, rest) = text.trim().split_once([' ', ':']).unwrap_or((text, ""));
    let rest = rest.trim();
    let factor = || {
        rest.parse()
            .map_err(|_| wrong("write a number after it, like 0.5"))
    };
    let count = || match rest.parse::<u64>() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(wrong("write a whole number after it, 1 or more")),
    };
    let does: Arc<dyn Operator> = match word {
        "as" => Arc::new(As(dtype(rest)?)),
        "scale" => Arc::new(Linear {
            scale: factor()?,
            offset: 0.0,
        }),
        "offset" => Arc::new(Linear {
            scale: 1.0,
            offset: factor()?,
        }),
        "stride" => Arc::new(Stride(count()?)),
        "mean" => Arc::new(Mean(count()?)),
        "mine" if rest.is_empty() => {
            return Err(wrong(
                "write the name of an operator after it, like mine:name",
            ));
        }
        "mine" => {
            return Ok(Written {
                text: text.to_owned(),
                does: Does::Mine(rest.to_owned()),
            });
        }
        other => {
            let known = ["as", "scale", "offset", "stride", "mean", "mine"];
            return Err(GraphError::word("operator", other, &known));
        }
    };
    Ok(Written {
        text: text.to_owned(),
        does: Does::This(does),
    })
}

#[cfg(test)]
mod tests {
    use super::super::edge::{Applied, Promise};
    use super::*;

    #[test]
    fn operators_are_words_and_what_follows() {
        for text in [
            "as f32",
            "scale 0.5",
            "offset -1e3",
            "stride 2",
            "mean 4",
            "mine:edges",
        ] {
            assert_eq!(parse(text).unwrap().text, text);
        }
        for (text, said) in [
            ("strid 2", "did you mean `stride`"),
            ("stride 0", "1 or more"),
            ("stride x", "1 or more"),
            ("scale", "write a number"),
            ("as f65", "did you mean `f64`"),
            ("mine:", "mine:name"),
            ("", "there is no operator ``"),
        ] {
            let error = parse(text).err().map(|error| error.to_string());
            assert!(
                error.as_ref().is_some_and(|error| error.contains(said)),
                "{text}: {error:?}"
            );
        }
        let edge = Edge {
            operators: ["scale 2", "men 2"].map(Applied::from).into(),
            ..Edge::new("a", "s", "b")
        };
        assert_eq!(check_operators(&edge).err().map(|(at, _)| at), Some(1));
    }

    #[test]
    fn an_operator_is_for_what_is_promised() {
        let promise = Promise {
            name: "u".into(),
            dtype: crate::Dtype::F64,
            extent: None,
            cut: None,
            every: 1,
        };
        let edge = |name: &str, variables| Edge {
            operators: vec![Applied {
                variables: vec![name.to_owned()],
                ..Applied::from("mean 2")
            }],
            variables,
            ..Edge::new("a", "s", "b")
        };
        assert_eq!(check_operators(&edge("u", vec![promise.clone()])), Ok(()));
        assert_eq!(check_operators(&edge("v", vec![])), Ok(()));
        let (at, error) = check_operators(&edge("uu", vec![promise])).unwrap_err();
        let error = error.to_string();
        assert!(at == 0 && error.contains("did you mean `u`"), "{error}");
    }
}
