//! `[[edge]]`: which program reads what another one writes.
//!
//! ```toml
//! [[edge]]
//! from = "solver"                   # the program that writes
//! stream = "field"                  # its name for the stream
//! to = "analysis"                   # the program that reads
//! as = "input"                      # its name for the stream; default: the same
//! redistribute = "block"            # what each reader gets: count, round, block; default: box
//! rate = "every 2"                  # what happens if readers are slow: as the setting `policy`
//! limit_steps = "4 steps"           # as the settings of the same names
//! limit_bytes = "1 GiB"
//! operators = ["stride 2", { apply = "as f32", variables = ["u"] }] # applied in this order
//! tokens = 1                        # the reader's first so many steps are empty
//! variables = [ { name = "u", dtype = "f64", block = "{size},{size}", cut = "rows", every = 1 } ]
//! ```
//!
//! `variables` is what the writer promises: in each step, or in multiples of `every`, an array of
//! this type. Either `block` is the shape of what each unit puts, or `shape` is that of the whole
//! array; `cut` says how the units' parts are arranged in the whole. `block` and `shape` are
//! extents in a list, or in a text with commas: numbers, or sums and products of parameters (`"4 *
//! {cells}^3"`), in which `true` is 1 and `false` 0.
//!
//! An edge may name a program with `instances`: it then stands for an edge of each instance. If
//! both programs have instances, it links those with the same number. In such an edge, `{instance}`
//! is that number: `as = "field-{instance}"` for a reader of several instances.
//!
//! The launcher does not interpret these words: it fills in parameters, evaluates numbers, and
//! checks that programs and names exist. The keys and words are those of the type as which the
//! edges are deserialised.

use super::Workflow;
use super::number::{number, numbers};
use crate::error::Error;
use crate::parameters::fill_in;
use crate::source::suggestion;
use figment::error::Kind;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use toml::de::DeTable;
use toml::{Table, Value};

/// The keys that `--set edge.PROGRAM.STREAM.KEY=VALUE` can change.
const SETTABLE: &[&str] = &[
    "as",
    "redistribute",
    "rate",
    "limit_steps",
    "limit_bytes",
    "operators",
    "tokens",
];

impl Workflow {
    /// Returns the edges of the graph, in the file's order, each with the number of its `[[edge]]`;
    /// none if the file has no edges. `E` determines which keys an edge has. What it deserialises
    /// has parameters filled in, whole numbers as `tokens` and `every`, lists of them as `block`
    /// and `shape`, a table for each operator, and always `as`.
    ///
    /// # Errors
    /// [`Error::Workflow`], with the line: not a valid `E`, a program that does not exist, two
    /// edges to one name, an invalid number.
    pub fn edges<E: DeserializeOwned>(&self) -> Result<Vec<(usize, E)>, Error> {
        let mut tables: Vec<(usize, Table)> = Vec::new();
        for at in 0..self.file.edge.len() {
            let filled = self.filled_edges(at)?;
            tables.extend(filled.into_iter().map(|table| (at, table)));
        }
        let read = |(at, table): &(usize, Table)| Ok((*at, self.read_edge(*at, table)?));
        let edges = tables.iter().map(read).collect::<Result<_, _>>()?;
        self.check_ends(&tables)?;
        Ok(edges)
    }

    /// Creates an error about an edge, with the line of `key`: `tokens`, or `operators.0` for the
    /// first of a list. If the file does not contain the key, it is the line of the edge.
    pub fn edge_error(&self, edge: usize, key: &str, message: impl Display) -> Error {
        let span = self.place(edge, key).unwrap_or(0..0);
        self.source.error(span, message.to_string())
    }

    /// Returns the innermost part of `key` that exists in the file.
    fn place(&self, edge: usize, key: &str) -> Option<Range<usize>> {
        let file = DeTable::parse(self.source.text()).ok()?;
        let mut value = file.get_ref().get("edge")?.get_ref().get(edge)?;
        let mut span = value.get_ref().get("from").unwrap_or(value).span();
        for part in key.split('.') {
            let inner = match part.parse::<usize>() {
                Ok(at) => value.get_ref().get(at),
                Err(_) => value.get_ref().get(part),
            };
            let Some(inner) = inner else { break };
            (value, span) = (inner, inner.span());
        }
        Some(span)
    }

    /// Returns the edges for which one of the file stands: one, or one for each instance.
    fn filled_edges(&self, at: usize) -> Result<Vec<Table>, Error> {
        // The name of a program whose instances are meant, and their number.
        let values = self.values_of_instances();
        let meant = |key: &str| -> Result<Option<(String, u32)>, Error> {
            let Some(Value::String(text)) = self.file.edge[at].get(key) else {
                return Ok(None);
            };
            let name =
                fill_in(text, &values).map_err(|message| self.edge_error(at, key, message))?;
            let mut entries = self.file.program.iter();
            let entry = entries.find(|one| one.instances.is_some() && *one.name.get_ref() == name);
            let Some(entry) = entry else { return Ok(None) };
            Ok(Some((name, self.instances(entry)?.end)))
        };
        let (from, to) = (meant("from")?, meant("to")?);
        let instances = match (&from, &to) {
            (None, None) => return Ok(vec![self.filled_edge(at, &self.values)?]),
            (Some((from, some)), Some((to, others))) if some != others => {
                let message = format!(
                    "`{from}` has {some} instances and `{to}` {others}: give both as many, or write \
                     an edge for each"
                );
                return Err(self.edge_error(at, "from", message));
            }
            (Some((_, instances)), _) | (None, Some((_, instances))) => *instances,
        };
        let edge = |instance: u32| {
            let mut values = self.values.clone();
            values.insert("instance".to_owned(), instance.to_string());
            let mut filled = self.filled_edge(at, &values)?;
            for (key, end) in [("from", &from), ("to", &to)] {
                if let Some((name, _)) = end {
                    filled.insert(key.to_owned(), format!("{name}-{instance}").into());
                }
            }
            Ok(filled)
        };
        (0..instances).map(edge).collect()
    }

    /// Returns the values of parameters, with which `{instance}` stays as it is.
    fn values_of_instances(&self) -> BTreeMap<String, String> {
        let mut values = self.values.clone();
        values.insert("instance".to_owned(), "{instance}".to_owned());
        values
    }

    fn filled_edge(&self, at: usize, values: &BTreeMap<String, String>) -> Result<Table, Error> {
        let mut filled = Table::new();
        for (key, value) in &self.file.edge[at] {
            filled.insert(key.clone(), self.filled(at, key, value, values)?);
        }
        if let (false, Some(stream)) = (filled.contains_key("as"), filled.get("stream")) {
            filled.insert("as".to_owned(), stream.clone());
        }
        Ok(filled)
    }

    /// Returns a value of an edge with parameters filled in and numbers evaluated; `key` is its
    /// path.
    fn filled(
        &self,
        edge: usize,
        key: &str,
        value: &Value,
        values: &BTreeMap<String, String>,
    ) -> Result<Value, Error> {
        let inside =
            |part: &dyn Display, value| self.filled(edge, &format!("{key}.{part}"), value, values);
        let fill = |text: &str| fill_in(text, values);
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let filled = match (key.rsplit('.').next().unwrap_or(key), value) {
            (_, Value::Table(table)) => {
                let inside = |(part, value)| Ok((String::clone(part), inside(part, value)?));
                let table = table.iter().map(inside).collect::<Result<Table, _>>()?;
                return Ok(table.into());
            }
            (_, Value::Array(values)) => {
                let inside = |(at, value)| inside(&at, value);
                let values = values.iter().enumerate().map(inside);
                return Ok(values.collect::<Result<Vec<_>, _>>()?.into());
            }
            ("tokens" | "every", _) => fill(&text).and_then(|text| number(&text)).map(whole),
            (_, Value::String(text)) if is_extent(key) => {
                fill(text).and_then(|text| number(&text)).map(whole)
            }
            ("block" | "shape", _) => fill(&text)
                .and_then(|text| numbers(&text))
                .map(|numbers| numbers.into_iter().map(whole).collect::<Vec<_>>().into()),
            // In a list of operators, a text is short for a table.
            (at, Value::String(text)) if key == format!("operators.{at}") => {
                let apply = |text| Table::from_iter([("apply".to_owned(), Value::String(text))]);
                fill(text).map(apply).map(Value::Table)
            }
            (_, Value::String(text)) => fill(text).map(Value::String),
            (_, other) => Ok(other.clone()),
        };
        filled.map_err(|message| self.edge_error(edge, key, message))
    }

    fn read_edge<E: DeserializeOwned>(&self, at: usize, table: &Table) -> Result<E, Error> {
        let wrong = |error: figment::Error| {
            let key = error.path.join(".");
            let message = match &error.kind {
                Kind::UnknownField(found, known) => {
                    format!("[[edge]] has no key `{key}`{}", suggestion(found, known))
                }
                Kind::UnknownVariant(found, known) => {
                    format!("`{key}` cannot be `{found}`{}", suggestion(found, known))
                }
                kind @ (Kind::InvalidType(..) | Kind::InvalidValue(..)) => {
                    format!("`{key}`: {kind}")
                }
                kind => kind.to_string(),
            };
            self.edge_error(at, &key, message)
        };
        let value = figment::value::Value::serialize(table).map_err(wrong)?;
        value.deserialize().map_err(wrong)
    }

    /// Checks that both programs of each edge exist, and that a reader has each stream name once.
    fn check_ends(&self, edges: &[(usize, Table)]) -> Result<(), Error> {
        let ends = edges.iter().map(|(at, edge)| {
            let text = |key| edge.get(key).and_then(Value::as_str).unwrap_or_default();
            (*at, ["from", "stream", "to", "as"].map(text))
        });
        let ends: Vec<(usize, [&str; 4])> = ends.collect();
        for (before, (at, [from, stream, to, name])) in ends.iter().enumerate() {
            let at = *at;
            self.check_program(at, "from", from)?;
            self.check_program(at, "to", to)?;
            let same =
                |(_, [_, _, other, called]): &&(usize, [&str; 4])| (other, called) == (to, name);
            if let Some((first, [other, others, ..])) = ends[..before].iter().find(same) {
                let remedy = match *first == at {
                    true => "give each a name of its own, for example `as = \"NAME-{instance}\"`",
                    false => "give one another name by `as`",
                };
                let message = format!(
                    "{to} has two streams called `{name}`, `{others}` of {other} and `{stream}` of \
                     {from}: {remedy}",
                );
                return Err(self.edge_error(at, "as", message));
            }
        }
        Ok(())
    }

    /// Checks that the program at one end of an edge is in this file and has units.
    fn check_program(&self, edge: usize, key: &str, name: &str) -> Result<(), Error> {
        let mut known = Vec::new();
        for (at, entry) in self.file.program.iter().enumerate() {
            let instances = self.instances(entry)?;
            known.extend(instances.map(|instance| (entry.name_of(instance), at)));
        }
        let Some((_, at)) = known.iter().find(|(known, _)| known == name).cloned() else {
            let known: Vec<&str> = known.iter().map(|(known, _)| known.as_str()).collect();
            let hint = suggestion(name, &known);
            let message = format!("there is no program `{name}`{hint}");
            return Err(self.edge_error(edge, key, message));
        };
        if self.units(&self.file.program[at])? == 0 {
            let message =
                format!("`{name}` has no units, so no edge can link it: give it at least one");
            return Err(self.edge_error(edge, key, message));
        }
        Ok(())
    }

    /// Changes a value of the file. `key` is `PROGRAM.STREAM.KEY`; stream names may contain dots.
    /// Operators are a list as in the file, or one operator; an empty value means none.
    pub(super) fn set_edge(&mut self, key: &str, value: &str) -> Result<(), String> {
        let parts = key.split_once('.').and_then(|(program, rest)| {
            let (stream, key) = rest.rsplit_once('.')?;
            Some((format!("{program}.{stream}"), key))
        });
        // Find the edge by its reader and by the reader's name for the stream, with parameters
        // filled in.
        let (wanted, key) = parts.ok_or(
            "write it as edge.PROGRAM.STREAM.KEY=VALUE: the program that reads, and what it calls \
             the stream",
        )?;
        // An edge of instances is changed for all of them.
        let values = self.values_of_instances();
        let named = |edge: &Table| {
            let text = |key| edge.get(key).and_then(Value::as_str);
            let fill = |text: Option<&str>| fill_in(text.unwrap_or_default(), &values);
            let name = fill(text("as").or(text("stream")))?;
            Ok::<_, String>(format!("{}.{name}", fill(text("to"))?))
        };
        let names: Vec<String> = self.file.edge.iter().map(named).collect::<Result<_, _>>()?;
        let Some(at) = names.iter().position(|name| *name == wanted) else {
            let known: Vec<&str> = names.iter().map(String::as_str).collect();
            let hint = match known[..] {
                [] => ": the workflow has no [[edge]]".to_owned(),
                _ => suggestion(&wanted, &known),
            };
            return Err(format!("there is no edge `{wanted}`{hint}"));
        };
        if !SETTABLE.contains(&key) {
            let hint = suggestion(key, SETTABLE);
            return Err(format!("`{key}` of an edge cannot be set{hint}"));
        }
        // A single operator needs no list.
        let value = match (key, value.trim()) {
            ("operators", "") => Value::Array(Vec::new()),
            ("operators", list) if list.starts_with('[') => list
                .parse()
                .map_err(|error: toml::de::Error| error.message().to_owned())?,
            ("operators", one) => Value::Array(vec![one.into()]),
            _ => value.into(),
        };
        self.file.edge[at].insert(key.to_owned(), value);
        Ok(())
    }
}

/// Returns true for an element of a list of extents: `variables.0.shape.1`.
fn is_extent(key: &str) -> bool {
    let list = key.rsplit('.').nth(1);
    list.is_some_and(|list| ["block", "shape"].contains(&list))
}

/// Converts a number of the file, which has at most 63 bits.
fn whole(number: u64) -> Value {
    Value::Integer(number as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
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

    fn workflow(text: &str) -> Workflow {
        let text = format!("{PROGRAMS}{text}");
        Workflow::parse(Path::new("graph.toml"), text).expect("well-formed")
    }

    fn tables(workflow: &Workflow) -> Vec<Table> {
        let edges = workflow.edges().expect("well-formed").into_iter();
        edges.map(|(_, edge)| edge).collect()
    }

    /// Returns an edge between the two programs: its `from` is in line 14, `rest` begins in line
    /// 17.
    fn edge(rest: &str) -> String {
        format!("[[edge]]\nfrom = 'solver'\nstream = 'f'\nto = 'analysis'\n{rest}\n")
    }

    fn table(text: &str) -> Table {
        toml::from_str(text).expect("a table")
    }

    #[test]
    fn an_edge_is_filled_in() {
        let short = tables(&workflow(&edge(""))).remove(0);
        let filled = "from = 'solver'\nstream = 'f'\nto = 'analysis'\nas = 'f'";
        assert_eq!(short, table(filled));
        let long = r#"
as = "input"
rate = "every {units}"
limit_steps = "4 steps"
operators = ["stride 2", { apply = "scale {size}", variables = ["u{size}"] }]
tokens = "{units} - 1"
variables = [
    { name = "u", dtype = "f64", block = "{size}, 2 * {size}^2", cut = "rows", every = "2 * true" },
    { name = "n", dtype = "u64", shape = 0x10 },
]
"#;
        let filled = r#"
from = "solver"
stream = "f"
to = "analysis"
as = "input"
rate = "every 3"
limit_steps = "4 steps"
operators = [{ apply = "stride 2" }, { apply = "scale 8", variables = ["u8"] }]
tokens = 2
variables = [
    { name = "u", dtype = "f64", block = [8, 128], cut = "rows", every = 2 },
    { name = "n", dtype = "u64", shape = [16] },
]
"#;
        assert_eq!(tables(&workflow(&edge(long))).remove(0), table(filled));
    }

    /// An edge between programs with instances stands for one of each instance.
    #[test]
    fn an_edge_stands_for_those_of_all_instances() {
        let programs = |solvers: &str, readers: &str| {
            let text = format!("{PROGRAMS}{}", edge("as = 'in-{instance}'"));
            let text = text.replace("name = \"solver\"", &format!("name = 'solver'\n{solvers}"));
            let text = text.replace(
                "name = \"analysis\"",
                &format!("name = 'analysis'\n{readers}"),
            );
            Workflow::parse(Path::new("graph.toml"), text).expect("well-formed")
        };
        let ends = |workflow: &Workflow| -> Vec<String> {
            let edges = workflow.edges::<Table>().expect("well-formed").into_iter();
            let ends = edges.map(|(at, edge)| {
                let text = |key: &str| edge[key].as_str().unwrap_or_default().to_owned();
                format!("{at} {} {} {}", text("from"), text("to"), text("as"))
            });
            ends.collect()
        };
        let two = "instances = 2";
        assert_eq!(
            ends(&programs(two, "")),
            ["0 solver-0 analysis in-0", "0 solver-1 analysis in-1"]
        );
        assert_eq!(
            ends(&programs("", two)),
            ["0 solver analysis-0 in-0", "0 solver analysis-1 in-1"]
        );
        assert_eq!(
            ends(&programs(two, two)),
            ["0 solver-0 analysis-0 in-0", "0 solver-1 analysis-1 in-1"]
        );
        let refused = |workflow: &Workflow| {
            let edges = workflow.edges::<Table>();
            edges.expect_err("not well-formed").to_string()
        };
        let error = refused(&programs(two, "instances = 3"));
        let said = "`solver` has 2 instances and `analysis` 3: give both as many";
        assert!(error.contains(said), "{error}");
        let error = refused(&programs("", ""));
        assert!(
            error.contains("`{instance}` has a value only in"),
            "{error}"
        );
        let changed = |workflow: &Workflow, from: &str, to: &str| {
            let text = workflow.source.text().replace(from, to);
            Workflow::parse(Path::new("graph.toml"), text).expect("well-formed")
        };
        let both = programs(two, two);
        let named = changed(&both, "from = 'solver'", "from = 'solver-{instance}'");
        assert_eq!(ends(&named), ends(&both));
        let error = refused(&changed(&programs(two, ""), "-{instance}", ""));
        assert!(error.contains("`as = \"NAME-{instance}\"`"), "{error}");
    }

    #[test]
    fn mistakes_name_their_line_and_what_to_write() {
        let message = |text: &str| {
            let edges = workflow(text).edges::<Table>();
            edges.expect_err(text).to_string()
        };
        let error = message(&edge("").replace("analysis", "analisis"));
        assert!(error.contains("graph.toml:16"), "{error}");
        assert!(error.contains("did you mean `analysis`"), "{error}");
        let twice = format!("{}{}", edge(""), edge(""));
        assert!(message(&twice).contains("two streams called `f`"));
        for (rest, said) in [
            ("tokens = 'x'", "`x` is not a number"),
            ("rate = 'every {unit}'", "did you mean `units`"),
            ("variables = [{ block = '{size},' }]", "not a number"),
            ("variables = [{ block = [4, 'x'] }]", "`x` is not a number"),
            ("operators = ['{n}']", "not in [parameters]"),
            ("operators = [{ apply = '{n}' }]", "not in [parameters]"),
        ] {
            let error = message(&edge(rest));
            assert!(error.contains(said), "{rest}: {error}");
            assert!(error.contains("graph.toml:17"), "{rest}: {error}");
        }
    }

    #[test]
    fn what_the_type_of_an_edge_refuses_stands_at_its_key() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code, reason = "it is only read")]
        struct Edge {
            from: String,
            stream: String,
            to: String,
            #[serde(rename = "as")]
            name: String,
            redistribute: Option<Half>,
            variables: Option<Vec<u64>>,
        }
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Half {
            Left,
            Right,
        }
        for (rest, line, said) in [
            ("redistribut = 'left'", 17, "did you mean `redistribute`?"),
            (
                "\nredistribute = 'rigt'",
                18,
                "cannot be `rigt`; did you mean `right`?",
            ),
            (
                "variables = [\n1,\n'x',\n]",
                19,
                "`variables.1`: invalid type",
            ),
        ] {
            let error = workflow(&edge(rest)).edges::<Edge>().expect_err(rest);
            let error = error.to_string();
            assert!(error.contains(&format!("graph.toml:{line}: ")), "{error}");
            assert!(error.contains(said), "{error}");
        }
        let without = edge("").replace("stream", "#");
        let error = workflow(&without).edges::<Edge>().expect_err("no stream");
        assert!(
            error
                .to_string()
                .starts_with("graph.toml:14: missing field"),
            "{error}"
        );
    }

    #[test]
    fn keys_of_an_edge_can_be_set() {
        let other = edge("as = 'in'\noperators = ['mean 2']");
        let mut workflow = workflow(&(edge("").replace("'f'", "'a.b'") + &other));
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
        let first = "from = 'solver'\nstream = 'a.b'\nto = 'analysis'\nas = 'other'
limit_bytes = '1 GiB'\nredistribute = 'count'\noperators = [{ apply = 'scale 0.5' }]";
        let second = "from = 'solver'\nstream = 'f'\nto = 'analysis'\nas = 'in'
rate = 'every 3'\ntokens = 2
operators = [{ apply = 'stride 2' }, { apply = 'as f32', variables = ['u'] }]";
        assert_eq!(tables(&workflow), [table(first), table(second)]);
        workflow.set("edge.analysis.in.operators=").expect("none");
        assert_eq!(tables(&workflow)[1]["operators"], Value::Array(Vec::new()));
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
            ("edge.analysis.in.operators=['a'", "unclosed array"),
        ] {
            let error = workflow.set(setting).expect_err(setting).to_string();
            assert!(error.contains(said), "{setting}: {error}");
        }
    }

    #[test]
    fn a_workflow_without_edges_has_none_to_set() {
        let error = workflow("").set("edge.a.b.rate=latest");
        let error = error.expect_err("no edge").to_string();
        assert!(error.contains("has no [[edge]]"), "{error}");
    }

    #[test]
    fn an_error_of_others_stands_at_its_key() {
        let workflow = workflow(&edge("operators = [\n'a',\n'b',\n]"));
        let line = |key| workflow.edge_error(0, key, "odd").to_string();
        assert_eq!(line("from"), "graph.toml:14: odd");
        assert_eq!(line("operators.1"), "graph.toml:19: odd");
        // An error about a missing key is reported at the innermost part that exists.
        assert_eq!(line("operators.1.variables"), "graph.toml:19: odd");
        assert_eq!(line("rate"), "graph.toml:14: odd");
    }
}
