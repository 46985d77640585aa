//! Errors of a graph, as sentences for the user.

use crate::protocol::Step;

/// An invalid edge, a missing one, or a broken promise.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// An unknown word.
    #[error("there is no {what} `{word}`{hint}")]
    Word {
        /// What it should be.
        what: &'static str,
        /// As written.
        word: String,
        /// The nearest known word, or all of them.
        hint: String,
    },
    /// An invalid argument of an operator.
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
        /// Each reads from the one before it, and the first from the last.
        programs: Vec<String>,
        /// The edge that closes the circle.
        edge: String,
    },
    /// A program opens a stream for reading without an edge.
    #[error(
        "no edge leads a stream called `{name}` to {program}: add an [[edge]] to the workflow, or check the name; {}",
        those(there, "no other edge leads to it either", "the edges to it are")
    )]
    NoEdgeTo {
        /// The program that would read.
        program: String,
        /// The name of the stream in that program.
        name: String,
        /// The edges that lead to it.
        there: Vec<String>,
    },
    /// A program opens a stream for writing without an edge.
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
        /// The registered names.
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
        /// The operator's reason.
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
        /// What was written.
        came: String,
    },
    /// Data requested from an empty step.
    #[error(
        "{edge}: this step is a token, which has no {variable}: check `step.is_token()` before reading"
    )]
    Token {
        /// The edge.
        edge: String,
        /// The requested variable.
        variable: String,
    },
    /// An own part requested from an edge that does not distribute.
    #[error(
        "{edge} does not divide the array among its readers: set its `redistribute` to count, round or block, or ask for a box"
    )]
    NothingIsMine {
        /// The edge.
        edge: String,
    },
    /// An own part of too many boxes.
    #[error(
        "{edge} gives this reader more than {most} boxes of {variable}, one for each row: set its `redistribute` to count or block, or ask for a box"
    )]
    TooManyBoxes {
        /// The edge.
        edge: String,
        /// The variable.
        variable: String,
        /// Their maximum number.
        most: u64,
    },
}

samite_mem::error_codes!(GraphError, "graph", {
    Word = 340, Argument = 341, Cycle = 342, NoEdgeTo = 343, NoEdgeFrom = 344, NoOperator = 345,
    Operator = 346, Broken = 347, Token = 348, NothingIsMine = 349,
    TooManyBoxes = 350,
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

/// Returns "a -> b -> a".
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
