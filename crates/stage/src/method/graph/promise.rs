//! Checks that a step is what its writer promised.
//!
//! A writer's own part is checked before it is committed: type, shape, and the block that each unit
//! puts. Whether a variable exists that any of the ranks may put is known only when all parts have
//! arrived, so readers check the whole step again.

use super::edge::{Edge, Extent, Promise};
use super::error::GraphError;
use crate::contents::Contents;
use crate::protocol::{Layout, Step};
use crate::space::Dims;
use crate::{Dtype, Region};

/// A variable as it was written, by one rank or by all.
struct Came<'a> {
    dtype: Dtype,
    shape: &'a Dims,
    /// The blocks of each checked rank.
    blocks: Vec<Vec<&'a Region>>,
}

/// Checks the part of one of `ranks` ranks, before it is committed.
///
/// # Errors
/// The first broken promise.
pub(crate) fn check_part(
    edges: &[Edge],
    step: Step,
    layout: &Layout,
    ranks: u32,
) -> Result<(), GraphError> {
    let find = |name: &str| {
        let mut variables = layout.variables.iter();
        let variable = variables.find(|variable| variable.name == name)?;
        Some(Came {
            dtype: variable.dtype,
            shape: &variable.shape,
            blocks: vec![variable.blocks.iter().map(|block| &block.region).collect()],
        })
    };
    let every_rank =
        |promise: &Promise| ranks == 1 || matches!(promise.extent, Some(Extent::Block(_)));
    let checked = edges.iter();
    let mut checked = checked.map(|edge| check(edge, (step, ranks), find, every_rank));
    checked.try_for_each(|kept| kept)
}

/// Checks a complete step.
///
/// # Errors
/// The first broken promise.
pub(crate) fn check_step(edge: &Edge, step: Step, contents: &Contents) -> Result<(), GraphError> {
    let find = |name: &str| {
        let mut variables = contents.variables.iter();
        let variable = variables.find(|variable| variable.info.name == name)?;
        let mut blocks = vec![Vec::new(); contents.ranks as usize];
        for block in &variable.blocks {
            blocks[block.rank as usize].push(&block.region);
        }
        Some(Came {
            dtype: variable.info.dtype,
            shape: &variable.info.shape,
            blocks,
        })
    };
    check(edge, (step, contents.ranks), find, |_| true)
}

/// Checks promises; `must` returns true if the variable of a promise has to exist.
fn check<'a>(
    edge: &Edge,
    (step, ranks): (Step, u32),
    find: impl Fn(&str) -> Option<Came<'a>>,
    must: impl Fn(&Promise) -> bool,
) -> Result<(), GraphError> {
    for promise in &edge.variables {
        let due = step.is_multiple_of(promise.every.max(1));
        let came = match find(&promise.name) {
            Some(came) => differs(promise, ranks, &came),
            None if due && must(promise) => Some(format!("no {}", promise.name)),
            None => None,
        };
        if let Some(came) = came {
            return Err(GraphError::Broken {
                edge: edge.to_string(),
                from: edge.from.clone(),
                to: edge.to.clone(),
                step,
                promised: words(promise),
                came,
            });
        }
    }
    Ok(())
}

/// Returns how a variable differs from the promise, in words.
fn differs(promise: &Promise, ranks: u32, came: &Came<'_>) -> Option<String> {
    let Promise { name, dtype, .. } = promise;
    if came.dtype != *dtype {
        return Some(format!("{name} as {}", came.dtype));
    }
    let whole = promise.shape(ranks);
    let dims = match &promise.extent {
        Some(Extent::Block(extent) | Extent::Shape(extent)) => extent.len(),
        None => came.shape.len(),
    };
    if whole.is_some_and(|whole| whole != *came.shape) || dims != came.shape.len() {
        return Some(format!("{name} of shape {:?}", came.shape));
    }
    let Some(Extent::Block(block)) = &promise.extent else {
        return None;
    };
    came.blocks
        .iter()
        .find_map(|blocks| other_block(name, block, blocks))
}

/// Returns what a rank has put, if it differs from the promised block. A block that was put in
/// parts is accepted if it has as many elements.
fn other_block(name: &str, block: &Dims, blocks: &[&Region]) -> Option<String> {
    if let [one] = blocks {
        let shape = one.shape();
        return (shape != *block).then(|| format!("a block of {name} of shape {shape:?}"));
    }
    let wanted = block
        .iter()
        .try_fold(1_u64, |all, extent| all.checked_mul(*extent));
    let volumes = blocks.iter().map(|part| part.volume());
    let there = volumes.sum::<Option<u64>>();
    (there != wanted).then(|| {
        let there = there.map_or("too many".to_owned(), |there| there.to_string());
        format!("blocks of {name} with {there} elements from a unit")
    })
}

fn words(promise: &Promise) -> String {
    let Promise {
        name, dtype, every, ..
    } = promise;
    let extent = match &promise.extent {
        Some(Extent::Block(block)) => format!(", blocks of shape {block:?}"),
        Some(Extent::Shape(shape)) => format!(", of shape {shape:?}"),
        None => String::new(),
    };
    let cut = promise
        .cut
        .map_or(String::new(), |cut| format!(" cut in {cut}"));
    let every = match every {
        0 | 1 => "every step".to_owned(),
        every => format!("every {every} steps"),
    };
    format!("{name} as {dtype}{extent}{cut} in {every}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::graph::Cut;
    use crate::protocol::{Block, Variable};

    fn layout(dtype: Dtype, shape: &[u64], blocks: &[(&[u64], &[u64])]) -> Layout {
        let block = |(lower, upper): &(&[u64], &[u64])| Block {
            region: Region::new(lower, upper).unwrap(),
            slot: 0,
        };
        Layout {
            variables: vec![Variable {
                name: "u".into(),
                dtype,
                shape: Dims::from_slice(shape),
                attributes: vec![],
                blocks: blocks.iter().map(block).collect(),
            }],
        }
    }

    fn edge(extent: Extent, cut: Option<Cut>, every: u64) -> Edge {
        Edge {
            variables: vec![Promise {
                name: "u".into(),
                dtype: Dtype::F64,
                extent: Some(extent),
                cut,
                every,
            }],
            ..Edge::new("solver", "field", "analysis")
        }
    }

    fn said(edge: &Edge, step: Step, layout: &Layout) -> Option<String> {
        let checked = check_part(std::slice::from_ref(edge), step, layout, 2);
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn a_promise_that_is_kept_is_silent() {
        let blocks = edge(Extent::Block(Dims::from_slice(&[4, 6])), Some(Cut::Rows), 1);
        let one = layout(Dtype::F64, &[8, 6], &[(&[4, 0], &[8, 6])]);
        assert_eq!(said(&blocks, 0, &one), None);
        let parts = layout(
            Dtype::F64,
            &[8, 6],
            &[(&[4, 0], &[7, 6]), (&[7, 0], &[8, 6])],
        );
        assert_eq!(said(&blocks, 0, &parts), None);
        let shape = edge(Extent::Shape(Dims::from_slice(&[8, 6])), None, 1);
        assert_eq!(said(&shape, 0, &one), None);
        // With several ranks, another one may have put it.
        assert_eq!(said(&shape, 0, &Layout::default()), None);
        let second = edge(Extent::Block(Dims::from_slice(&[4, 6])), None, 2);
        assert_eq!(said(&second, 1, &Layout::default()), None);
    }

    #[test]
    fn what_was_promised_and_what_came_is_said() {
        let blocks = edge(Extent::Block(Dims::from_slice(&[4, 6])), Some(Cut::Rows), 2);
        let block: &[(&[u64], &[u64])] = &[(&[4, 0], &[8, 6])];
        for (came, words) in [
            (layout(Dtype::F32, &[8, 6], block), "u as f32"),
            (layout(Dtype::F64, &[9, 6], block), "u of shape [9, 6]"),
            (layout(Dtype::F64, &[8, 6, 1], &[]), "u of shape [8, 6, 1]"),
            (
                layout(Dtype::F64, &[8, 6], &[(&[4, 0], &[8, 5])]),
                "a block of u of shape [4, 5]",
            ),
            (
                layout(
                    Dtype::F64,
                    &[8, 6],
                    &[(&[4, 0], &[5, 6]), (&[7, 0], &[8, 6])],
                ),
                "12 elements",
            ),
            (Layout::default(), "no u"),
        ] {
            let error = said(&blocks, 2, &came).expect(words);
            assert!(error.contains(words), "{error}");
            assert!(error.contains("step 2"), "{error}");
            assert!(
                error.contains("solver promised analysis u as f64, blocks of shape [4, 6] cut in rows in every 2 steps"),
                "{error}"
            );
        }
    }
}
