//! The graph as a whole: cycles, and which edges a program has.

use super::edge::Edge;
use super::error::GraphError;
use std::collections::BTreeSet;

/// Finds programs that would wait for each other forever: a cycle of edges without tokens.
///
/// # Errors
/// Such a cycle, and the index of the edge that closes it.
pub fn check_cycles(edges: &[Edge]) -> Result<(), (usize, GraphError)> {
    let mut done = BTreeSet::new();
    for edge in edges {
        visit(&edge.from, edges, &mut Vec::new(), &mut done)?;
    }
    Ok(())
}

/// Follows the edges without tokens from `program`; `path` contains the programs that led to it,
/// and `done` those that are in no cycle.
fn visit<'e>(
    program: &'e str,
    edges: &'e [Edge],
    path: &mut Vec<&'e str>,
    done: &mut BTreeSet<&'e str>,
) -> Result<(), (usize, GraphError)> {
    if done.contains(program) {
        return Ok(());
    }
    path.push(program);
    for (at, edge) in edges.iter().enumerate() {
        if edge.from != program || edge.tokens > 0 {
            continue;
        }
        if let Some(first) = path.iter().position(|known| *known == edge.to) {
            let programs = path[first..].iter().map(|name| (*name).to_owned());
            let cycle = GraphError::Cycle {
                programs: programs.collect(),
                edge: edge.to_string(),
            };
            return Err((at, cycle));
        }
        visit(&edge.to, edges, path, done)?;
    }
    path.pop();
    done.insert(program);
    Ok(())
}

/// Returns the edge of the stream that a reading program calls `name`.
pub(crate) fn edge_to<'e>(edges: &'e [Edge], program: &str, name: &str) -> Option<&'e Edge> {
    edges
        .iter()
        .find(|edge| edge.to == program && edge.name == name)
}

/// As [`edge_to`], but an edge is required.
///
/// # Errors
/// There is none; the error lists the edges that lead to the program.
pub(crate) fn linked_to<'e>(
    edges: &'e [Edge],
    program: &str,
    name: &str,
) -> Result<&'e Edge, GraphError> {
    edge_to(edges, program, name).ok_or_else(|| GraphError::NoEdgeTo {
        program: program.to_owned(),
        name: name.to_owned(),
        there: listed(edges, |edge| edge.to == program),
    })
}

/// Returns the edges that begin at a stream of a program: one or more.
///
/// # Errors
/// There is none; the error lists the edges that lead from the program.
pub(crate) fn linked_from(
    edges: &[Edge],
    program: &str,
    stream: &str,
) -> Result<Vec<Edge>, GraphError> {
    let of_stream = |edge: &&Edge| edge.from == program && edge.stream == stream;
    let linked: Vec<Edge> = edges.iter().filter(of_stream).cloned().collect();
    if linked.is_empty() {
        return Err(GraphError::NoEdgeFrom {
            program: program.to_owned(),
            stream: stream.to_owned(),
            there: listed(edges, |edge| edge.from == program),
        });
    }
    Ok(linked)
}

fn listed(edges: &[Edge], which: impl Fn(&Edge) -> bool) -> Vec<String> {
    let those = edges.iter().filter(|edge| which(edge));
    those.map(Edge::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn graph(text: &str) -> Vec<Edge> {
        let edge = |word: &str| {
            let (from, rest) = word.split_once('>').unwrap();
            let (to, tokens) = rest.split_once('+').unwrap_or((rest, "0"));
            Edge {
                tokens: tokens.parse().unwrap(),
                ..Edge::new(from, &format!("{from}{to}"), to)
            }
        };
        text.split_whitespace().map(edge).collect()
    }

    fn cycle(text: &str) -> Option<(usize, String)> {
        let (at, error) = check_cycles(&graph(text)).err()?;
        Some((at, error.to_string()))
    }

    #[test]
    fn a_cycle_without_tokens_is_named() {
        for text in ["a>b b>c a>c", "a>b b>a+1", "a>b a>b b>c c>d d>b+2", "a>a+1"] {
            assert_eq!(cycle(text), None, "{text}");
        }
        let (at, error) = cycle("x>a a>b b>c c>a").unwrap();
        assert_eq!(at, 3);
        assert!(error.contains("a -> b -> c -> a"), "{error}");
        assert!(error.contains("`tokens = 1` at c/ca -> a/ca"), "{error}");
        assert!(cycle("a>a").unwrap().1.contains("a -> a"));
        // Tokens on another path between the same programs do not help.
        assert!(cycle("a>b b>a+1 b>a").is_some());
    }

    #[test]
    fn a_program_without_its_edge_hears_which_there_are() {
        let edges = graph("a>b a>c");
        assert_eq!(linked_to(&edges, "b", "ab").unwrap(), &edges[0]);
        let error = linked_to(&edges, "b", "x").unwrap_err().to_string();
        assert!(error.contains("a/ab -> b/ab"), "{error}");
        assert!(!error.contains("c/ac"), "{error}");
        assert_eq!(linked_from(&edges, "a", "ac").unwrap().len(), 1);
        let error = linked_from(&edges, "b", "ab").unwrap_err().to_string();
        assert!(error.contains("no edge leads from"), "{error}");
        assert!(
            error.contains("no other edge leads from this program"),
            "{error}"
        );
    }

    proptest! {
        /// Programs can be ordered such that no edge without tokens leads back if and only if there
        /// is no such cycle.
        #[test]
        fn cycles_are_what_sorting_says(pairs in proptest::collection::vec((0u8..6, 0u8..6, 0u64..2), 0..12)) {
            let edges: Vec<Edge> = pairs
                .iter()
                .map(|(from, to, tokens)| Edge { tokens: *tokens, ..Edge::new(&from.to_string(), "s", &to.to_string()) })
                .collect();
            let mut left: Vec<&Edge> = edges.iter().filter(|edge| edge.tokens == 0).collect();
            loop {
                let before = left.len();
                let targets: BTreeSet<&str> = left.iter().map(|edge| edge.to.as_str()).collect();
                left.retain(|edge| targets.contains(edge.from.as_str()));
                if left.len() == before {
                    break;
                }
            }
            prop_assert_eq!(check_cycles(&edges).is_err(), !left.is_empty());
        }
    }
}
