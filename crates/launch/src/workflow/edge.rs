//! `[[edge]]`: which program reads what another one writes.
//!
//! ```toml
//! [[edge]]
//! from = "solver"                   # the program that writes
//! stream = "field"                  # what it calls the stream
//! to = "analysis"                   # the program that reads
//! as = "input"                      # what that one calls it; default: the same
//! redistribute = "block"            # who of the readers gets what: count, round, block; default: box
//! rate = "every 2"                  # what happens when readers are slow: as the setting `policy`
//! limit_steps = "4 steps"           # as the settings of the same names
//! limit_bytes = "1 GiB"
//! operators = ["stride 2", { apply = "as f32", variables = ["u"] }] # what is done to what passes, in this order
//! tokens = 1                        # the reader's first so many steps are empty
//! variables = [ { name = "u", dtype = "f64", block = "{size},{size}", cut = "rows", every = 1 } ]
//! ```
//!
//! `variables` is what the writer promises: in each step, or in multiples of `every`, an array of this type. Either
//! `block` is the shape of what each unit puts, or `shape` that of the whole; `cut` says how the parts of the units lie
//! in the whole. Extents are numbers, or sums and products of parameters (`"4 * {cells}^3"`), in which `true` is 1 and
//! `false` 0.
//!
//! What the words mean is not for the launcher to know: it sees to it that programs and names are there, and works out
//! numbers.

use super::Workflow;
use super::file::{EdgeEntry, OperatorEntry, Value, VariableEntry};
use super::number::{number, numbers};
use crate::error::Error;
use crate::parameters::fill_in;
use crate::source::suggestion;
use std::ops::Range;
use toml::Spanned;

/// A program that reads what another one writes. Words are as the file has them, with parameters filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The program that writes.
    pub from: String,
    /// What it calls the stream.
    pub stream: String,
    /// The program that reads.
    pub to: String,
    /// What that one calls it.
    pub name: String,
    /// Who of the readers gets what.
    pub redistribute: Option<String>,
    /// What happens when readers are slow.
    pub rate: Option<String>,
    /// Most steps that may wait for the readers.
    pub limit_steps: Option<String>,
    /// Most bytes that may wait for the readers.
    pub limit_bytes: Option<String>,
    /// What is done to what passes, in this order.
    pub operators: Vec<Applied>,
    /// The reader's first so many steps are empty.
    pub tokens: u64,
    /// What the writer promises.
    pub variables: Vec<Promise>,
}

/// An operator of an edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// As it is written.
    pub apply: String,
    /// Names of the variables that it is for; empty: all.
    pub variables: Vec<String>,
}

/// An array that the writer of an edge promises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: String,
    /// How large it is; `None`: not promised.
    pub extent: Option<Extent>,
    /// How the units' parts lie in the whole; `None`: not promised.
    pub cut: Option<String>,
    /// It is in the steps whose number is a multiple of this.
    pub every: u64,
}

/// Numbers per dimension, the slowest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extent {
    /// Of what each unit puts in a step.
    Block(Vec<u64>),
    /// Of the whole array.
    Shape(Vec<u64>),
}

/// Where in an edge something stands, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the key of the same name")]
pub enum EdgeKey {
    From,
    Stream,
    Redistribute,
    Rate,
    LimitSteps,
    LimitBytes,
    /// The operator with this number.
    Operator(usize),
    Tokens,
    As,
    /// The variable with this number.
    Variable(usize),
}

impl Workflow {
    /// The edges of the graph, in the file's order; none for a file that does not say who reads what.
    ///
    /// # Errors
    /// [`Error::Workflow`]: a program that is not there, two edges into one name, what is no number.
    pub fn edges(&self) -> Result<Vec<Edge>, Error> {
        let entries = &self.file.edge;
        let edges: Vec<Edge> = entries
            .iter()
            .map(|entry| self.edge(entry))
            .collect::<Result<_, _>>()?;
        for (at, edge) in edges.iter().enumerate() {
            let same = |other: &&Edge| (&other.to, &other.name) == (&edge.to, &edge.name);
            if let Some(other) = edges[..at].iter().find(same) {
                let message = format!(
                    "{} has two streams called `{}`, `{}` of {} and `{}` of {}: give one another name by `as`",
                    edge.to, edge.name, other.stream, other.from, edge.stream, edge.from
                );
                return Err(self.edge_error(at, EdgeKey::As, message));
            }
        }
        Ok(edges)
    }

    /// An error about an edge, with the line of the key.
    pub fn edge_error(&self, edge: usize, key: EdgeKey, message: impl Into<String>) -> Error {
        let span = self.file.edge.get(edge).map(|entry| entry.span(key));
        self.source.error(span.unwrap_or(0..0), message)
    }

    fn edge(&self, entry: &EdgeEntry) -> Result<Edge, Error> {
        let stream = self.fill(&entry.stream)?;
        let name = match &entry.name {
            Some(name) => self.fill(name)?,
            None => stream.clone(),
        };
        let word = |text: &Option<Spanned<String>>| {
            let filled = text.as_ref().map(|text| self.fill(text));
            filled.transpose()
        };
        let variables = entry.variables.iter();
        Ok(Edge {
            from: self.program_of(&entry.from)?,
            stream,
            to: self.program_of(&entry.to)?,
            name,
            redistribute: word(&entry.redistribute)?,
            rate: word(&entry.rate)?,
            limit_steps: word(&entry.limit_steps)?,
            limit_bytes: word(&entry.limit_bytes)?,
            operators: entry
                .operators
                .iter()
                .map(|operator| self.operator(operator))
                .collect::<Result<_, _>>()?,
            tokens: self.number(&entry.tokens, 0)?,
            variables: variables
                .map(|entry| self.promise(entry.get_ref()))
                .collect::<Result<_, _>>()?,
        })
    }

    fn operator(&self, entry: &Spanned<OperatorEntry>) -> Result<Applied, Error> {
        let (apply, variables) = match entry.get_ref() {
            OperatorEntry::All(apply) => (apply, None),
            OperatorEntry::Some { apply, variables } => (apply, variables.as_deref()),
        };
        if variables.is_some_and(<[String]>::is_empty) {
            let message =
                "say which `variables` the operator is for; without the key it is for all";
            return Err(self.source.error(entry.span(), message));
        }
        let fill = |text: &String| {
            fill_in(text, &self.values).map_err(|message| self.source.error(entry.span(), message))
        };
        Ok(Applied {
            apply: fill(apply)?,
            variables: variables
                .unwrap_or_default()
                .iter()
                .map(fill)
                .collect::<Result<_, _>>()?,
        })
    }

    fn promise(&self, entry: &VariableEntry) -> Result<Promise, Error> {
        let extent = match (&entry.block, &entry.shape) {
            (Some(block), None) => Some(Extent::Block(self.extents(block)?)),
            (None, Some(shape)) => Some(Extent::Shape(self.extents(shape)?)),
            (None, None) => None,
            (Some(_), Some(shape)) => {
                let message = "say `block`, of each unit, or `shape`, of the whole: not both";
                return Err(self.source.error(shape.span(), message));
            }
        };
        let every = self.number(&entry.every, 1)?;
        if let (0, Some(text)) = (every, &entry.every) {
            let message =
                "`every` is 1 or more: the variable is in the steps that are multiples of it";
            return Err(self.source.error(text.span(), message));
        }
        let cut = entry.cut.as_ref().map(|cut| self.fill(cut));
        Ok(Promise {
            name: self.fill(&entry.name)?,
            dtype: self.fill(&entry.dtype)?,
            extent,
            cut: cut.transpose()?,
            every,
        })
    }

    /// The name of a program of this file.
    fn program_of(&self, text: &Spanned<String>) -> Result<String, Error> {
        let name = self.fill(text)?;
        let programs = self.file.program.iter();
        let known: Vec<&str> = programs
            .map(|entry| entry.name.get_ref().as_str())
            .collect();
        let mut programs = self.file.program.iter();
        if let Some(entry) = programs.find(|entry| *entry.name.get_ref() == name) {
            if self.units(entry)? == 0 {
                let message = format!("`{name}` has no units, and an edge needs some");
                return Err(self.source.error(text.span(), message));
            }
            return Ok(name);
        }
        let hint = suggestion(&name, &known);
        let message = format!("there is no program `{name}`{hint}");
        Err(self.source.error(text.span(), message))
    }

    fn number(&self, value: &Option<Spanned<Value>>, default: u64) -> Result<u64, Error> {
        let Some(value) = value else {
            return Ok(default);
        };
        fill_in(&value.get_ref().text(), &self.values)
            .and_then(|text| number(&text))
            .map_err(|message| self.source.error(value.span(), message))
    }

    fn extents(&self, value: &Spanned<Value>) -> Result<Vec<u64>, Error> {
        fill_in(&value.get_ref().text(), &self.values)
            .and_then(|text| numbers(&text))
            .map_err(|message| self.source.error(value.span(), message))
    }
}

impl EdgeEntry {
    fn span(&self, key: EdgeKey) -> Range<usize> {
        let of = |text: &Option<Spanned<String>>| text.as_ref().map(Spanned::span);
        let span = match key {
            EdgeKey::From => None,
            EdgeKey::Stream => Some(self.stream.span()),
            EdgeKey::Redistribute => of(&self.redistribute),
            EdgeKey::Rate => of(&self.rate),
            EdgeKey::LimitSteps => of(&self.limit_steps),
            EdgeKey::LimitBytes => of(&self.limit_bytes),
            EdgeKey::Operator(at) => self.operators.get(at).map(Spanned::span),
            EdgeKey::Tokens => self.tokens.as_ref().map(Spanned::span),
            EdgeKey::As => of(&self.name),
            EdgeKey::Variable(at) => self.variables.get(at).map(Spanned::span),
        };
        span.unwrap_or(self.from.span())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const PROGRAMS: &str = r#"
[parameters]
size = 8
units = 3

[[program]]
name = "solver"
command = "sh"

[[program]]
name = "analysis"
command = "sh"
"#;

    fn edges(text: &str) -> Result<Vec<Edge>, Error> {
        let text = format!("{PROGRAMS}{text}");
        Workflow::parse(Path::new("graph.toml"), text)?.edges()
    }

    fn message(text: &str) -> String {
        edges(text).expect_err(text).to_string()
    }

    #[test]
    fn an_edge_says_who_reads_what() {
        let short = "[[edge]]\nfrom = 'solver'\nstream = 'field'\nto = 'analysis'";
        let edge = edges(short).expect("well-formed").remove(0);
        assert_eq!(
            (edge.from.as_str(), edge.to.as_str()),
            ("solver", "analysis")
        );
        assert_eq!(
            (edge.stream.as_str(), edge.name.as_str()),
            ("field", "field")
        );
        assert_eq!((edge.tokens, edge.operators.len()), (0, 0));
        assert_eq!(edge.redistribute, None);

        let long = r#"
[[edge]]
from = "solver"
stream = "field"
to = "analysis"
as = "input"
redistribute = "block"
rate = "every {units}"
limit_steps = "4 steps"
operators = ["stride 2", { apply = "scale {size}", variables = ["u"] }]
tokens = "{units} - 1"
variables = [
    { name = "u", dtype = "f64", block = "{size}, 2 * {size}^2", cut = "rows", every = 2 },
    { name = "n", dtype = "u64", shape = 1 },
]
"#;
        let edge = edges(long).expect("well-formed").remove(0);
        assert_eq!(
            (edge.stream.as_str(), edge.name.as_str()),
            ("field", "input")
        );
        assert_eq!(edge.rate.as_deref(), Some("every 3"));
        let operators = edge.operators.iter();
        let operators: Vec<_> = operators
            .map(|it| (&*it.apply, &it.variables[..]))
            .collect();
        let for_u = ["u".to_owned()];
        assert_eq!(operators, [("stride 2", &[][..]), ("scale 8", &for_u)]);
        assert_eq!(edge.tokens, 2);
        let [u, n] = &edge.variables[..] else {
            panic!("{:?}", edge.variables)
        };
        assert_eq!(u.extent, Some(Extent::Block(vec![8, 128])));
        assert_eq!((u.cut.as_deref(), u.every), (Some("rows"), 2));
        assert_eq!((&n.extent, n.every), (&Some(Extent::Shape(vec![1])), 1));
    }

    #[test]
    fn mistakes_name_their_line_and_what_to_write() {
        let edge = |rest: &str| {
            format!("[[edge]]\nfrom = 'solver'\nstream = 'f'\nto = 'analysis'\n{rest}\n")
        };
        let unknown = "[[edge]]\nfrom = 'solver'\nstream = 'f'\nto = 'analisis'";
        let error = message(unknown);
        assert!(error.contains("graph.toml:16"), "{error}");
        assert!(error.contains("did you mean `analysis`"), "{error}");
        let twice = format!("{}{}", edge(""), edge(""));
        assert!(message(&twice).contains("two streams called `f`"));
        for (rest, said) in [
            ("tokens = 'x'", "`x` is no number"),
            ("redistribut = 'block'", "did you mean `redistribute`"),
            ("rate = 'every {unit}'", "did you mean `units`"),
            (
                "variables = [{ name = 'u', dtype = 'f64', blok = 3 }]",
                "did you mean `block`",
            ),
            (
                "variables = [{ name = 'u', dtype = 'f64', block = 3, shape = 3 }]",
                "not both",
            ),
            (
                "variables = [{ name = 'u', dtype = 'f64', every = 0 }]",
                "1 or more",
            ),
            (
                "variables = [{ name = 'u', dtype = 'f64', block = '{size},' }]",
                "no number",
            ),
            ("variables = [{ dtype = 'f64' }]", "name"),
            (
                "operators = [{ apply = 'mean 2', variable = ['u'] }]",
                "did you mean `variables`",
            ),
            (
                "operators = [{ apply = 'mean {n}' }]",
                "not in [parameters]",
            ),
            (
                "operators = [{ variables = ['u'] }]",
                "an operator is a text",
            ),
            (
                "operators = [{ apply = 'mean 2', variables = [] }]",
                "which `variables`",
            ),
        ] {
            let error = message(&edge(rest));
            assert!(error.contains(said), "{rest}: {error}");
            assert!(error.contains("graph.toml:17"), "{rest}: {error}");
        }
    }

    #[test]
    fn keys_of_an_edge_can_be_set() {
        let text = format!(
            "{PROGRAMS}[[edge]]\nfrom = 'solver'\nstream = 'a.b'\nto = 'analysis'\n[[edge]]\nfrom = 'solver'\nstream = 'f'\nto = 'analysis'\nas = 'in'\noperators = ['mean 2']\n"
        );
        let mut workflow = Workflow::parse(Path::new("graph.toml"), text).expect("well-formed");
        for setting in [
            "edge.analysis.in.rate=every {units}",
            "edge.analysis.in.tokens=2",
            "edge.analysis.in.operators=['stride 2', { apply = 'as f32', variables = ['u'] }]",
            "edge.analysis.a.b.limit_bytes=1 GiB",
            "edge.analysis.a.b.operators=scale 0.5",
            "edge.analysis.a.b.redistribute=count",
            "edge.analysis.a.b.as=other",
        ] {
            workflow.set(setting).expect(setting);
        }
        let edges = workflow.edges().expect("well-formed");
        assert_eq!(edges[1].rate.as_deref(), Some("every 3"));
        assert_eq!((edges[1].tokens, edges[1].operators.len()), (2, 2));
        assert_eq!(edges[1].operators[1].variables, ["u"]);
        assert_eq!(edges[0].limit_bytes.as_deref(), Some("1 GiB"));
        assert_eq!(edges[0].operators[0].apply, "scale 0.5");
        assert_eq!(
            (edges[0].redistribute.as_deref(), edges[0].name.as_str()),
            (Some("count"), "other")
        );
        workflow.set("edge.analysis.in.operators=").expect("none");
        assert!(
            workflow.edges().expect("well-formed")[1]
                .operators
                .is_empty()
        );
        for (setting, said) in [
            (
                "edge.analysis.inn.rate=latest",
                "did you mean `analysis.in`",
            ),
            (
                "edge.solver.field.rate=latest",
                "known here: analysis.other, analysis.in",
            ),
            ("edge.analysis.in.rat=latest", "did you mean `rate`"),
            (
                "edge.analysis.in.variables=x",
                "known here: as, redistribute",
            ),
            ("edge.analysis.rate=latest", "edge.PROGRAM.STREAM.KEY=VALUE"),
            ("edge.analysis.in.operators=[3]", "an operator is a text"),
        ] {
            let error = workflow.set(setting).expect_err(setting).to_string();
            assert!(error.contains(said), "{setting}: {error}");
        }
        let mut none =
            Workflow::parse(Path::new("graph.toml"), PROGRAMS.to_owned()).expect("well-formed");
        let error = none
            .set("edge.a.b.rate=latest")
            .expect_err("no edge")
            .to_string();
        assert!(error.contains("has no [[edge]]"), "{error}");
    }

    #[test]
    fn an_error_of_others_stands_at_its_key() {
        let text = format!(
            "{PROGRAMS}[[edge]]\nfrom = 'solver'\nstream = 'f'\nto = 'analysis'\noperators = [\n'a',\n'b',\n]"
        );
        let workflow = Workflow::parse(Path::new("graph.toml"), text).expect("well-formed");
        let line = |key| workflow.edge_error(0, key, "odd").to_string();
        assert_eq!(line(EdgeKey::From), "graph.toml:14: odd");
        assert_eq!(line(EdgeKey::Operator(1)), "graph.toml:19: odd");
        // What the file does not say stands where the edge does.
        assert_eq!(line(EdgeKey::Rate), "graph.toml:14: odd");
    }
}
