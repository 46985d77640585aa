//! What can be wrong with a graph, said to a person.

use crate::protocol::Step;

/// An edge that cannot be, one that is missing, and promises that were not kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A word that is none of those that are known.
    #[error("there is no {what} `{word}`{hint}")]
    Word {
        /// What it should be.
        what: &'static str,
        /// As written.
        word: String,
        /// The nearest one, or all.
        hint: String,
    },
    /// What follows the name of an operator.
    #[error("the operator `{operator}`: {why}")]
    Argument {
        /// As written.
        operator: String,
        /// What is wrong, and what to write.
        why: String,
    },
    /// Programs that would wait for each other's first step.
    #[error(
        "{} wait for each other's first step: give one of the edges between them tokens, for example `tokens = 1` at {edge}",
        circle(programs)
    )]
    Cycle {
        /// Each reads what the one before it writes; the first what the last one writes.
        programs: Vec<String>,
        /// The edge that closes the circle.
        edge: String,
    },
    /// A reader whose program has no such edge.
    #[error(
        "no edge leads a stream called `{name}` to {program}: add an [[edge]] to the workflow, or check the name; {}",
        those(there, "no other edge leads to it either", "the edges to it are")
    )]
    NoEdgeTo {
        /// The program that would read.
        program: String,
        /// What it calls the stream.
        name: String,
        /// The edges that lead to it.
        there: Vec<String>,
    },
    /// A writer whose stream nobody reads.
    #[error(
        "no edge leads from the stream `{stream}` of {program}: add an [[edge]] from it to the workflow; {}",
        those(
            there,
            "no other edge leads from this program either",
            "the edges from this program are"
        )
    )]
    NoEdgeFrom {
        /// The program that would write.
        program: String,
        /// Its stream.
        stream: String,
        /// The edges that lead from it.
        there: Vec<String>,
    },
    /// An operator `mine:NAME` that the reading program has not registered.
    #[error(
        "{edge} has the operator `mine:{name}`, but {program} has registered {}: call `stage.operator(\"{name}\", ...)` before it opens the stream",
        names(there)
    )]
    NoOperator {
        /// The edge.
        edge: String,
        /// The program that reads.
        program: String,
        /// The name.
        name: String,
        /// What it has registered.
        there: Vec<String>,
    },
    /// An operator that cannot be applied.
    #[error("{edge}: the operator `{operator}` cannot be applied to {variable}: {why}")]
    Operator {
        /// The edge.
        edge: String,
        /// As written.
        operator: String,
        /// The variable.
        variable: String,
        /// What the operator says.
        why: String,
    },
    /// A promise that the writer has not kept.
    #[error(
        "{edge}: {from} promised {to} {promised}, but step {step} has {came}: change the program, or the edge's `variables`"
    )]
    Broken {
        /// The edge.
        edge: String,
        /// The program that writes.
        from: String,
        /// The program that reads.
        to: String,
        /// The step.
        step: Step,
        /// What was promised.
        promised: String,
        /// What came.
        came: String,
    },
    /// Data asked of an empty step.
    #[error(
        "{edge}: this step is a token, which has no {variable}: check `step.is_token()` before reading"
    )]
    Token {
        /// The edge.
        edge: String,
        /// What was asked for.
        variable: String,
    },
    /// A part of its own asked of an edge that gives none.
    #[error(
        "{edge} does not divide the array among its readers: set its `redistribute` to count, round or block, or ask for a box"
    )]
    NothingIsMine {
        /// The edge.
        edge: String,
    },
}

samite_mem::error_codes!(GraphError, "graph", {
    Word = 340, Argument = 341, Cycle = 342, NoEdgeTo = 343, NoEdgeFrom = 344, NoOperator = 345,
    Operator = 346, Broken = 347, Token = 348, NothingIsMine = 349,
});

impl GraphError {
    pub(super) fn word(what: &'static str, word: &str, known: &[&str]) -> GraphError {
        let limit = (word.chars().count() / 3).max(2);
        let near = known
            .iter()
            .map(|known| (strsim::damerau_levenshtein(word, known), known))
            .filter(|(distance, _)| *distance <= limit)
            .min();
        GraphError::Word {
            what,
            word: word.to_owned(),
            hint: match near {
                Some((_, near)) => format!("; did you mean `{near}`?"),
                None => format!("; there are {}", known.join(", ")),
            },
        }
    }
}

/// "a -> b -> a".
fn circle(programs: &[String]) -> String {
    let closed = programs.iter().chain(programs.first());
    closed.map(String::as_str).collect::<Vec<_>>().join(" -> ")
}

fn those(edges: &[String], none: &str, some: &str) -> String {
    match edges {
        [] => none.to_owned(),
        edges => format!("{some} {}", edges.join(", ")),
    }
}

fn names(there: &[String]) -> String {
    match there {
        [] => "none".to_owned(),
        there => there.join(", "),
    }
}
