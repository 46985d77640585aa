//! Layers of settings and how they merge.
//!
//! Each layer records where its values come from, so that an error, and `config show --origin`, can
//! name a line of a file, a variable or an option. figment does the merging.

use super::file::File;
use super::names::{hint, is_known, known_names, like, nearest};
use super::{Auto, Config, ConfigError, Steps};
use figment::error::Kind;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use samite_stage::method::graph::Edge;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The prefix of Samite's environment variables.
const PREFIX: &str = "SAMITE_";
/// Variables that the launcher, the build, the benchmarks and the tests use; they are not settings.
const RESERVED: &[&str] = &[
    "DOMAIN",
    "JOB",
    "PROGRAM",
    "RANK",
    "SIZE",
    "UNIT",
    "UNITS",
    "CONFIG",
    "LAUNCHER",
    "LOG",
    "PYTHON",
    "LAMMPS",
    "SEED",
    "MOBILE_WASM",
];
const RESERVED_FAMILIES: &[&str] = &["BENCH_", "FUZZ_", "SIM_", "TEST_"];

/// Returns true if a variable's name, after the prefix, is not that of a setting.
fn is_reserved(rest: &str) -> bool {
    let family = |family: &&str| rest.starts_with(*family);
    RESERVED.contains(&rest) || RESERVED_FAMILIES.iter().any(family)
}

/// Layers of settings; each takes precedence over those that were added before it.
#[derive(Debug, Default)]
pub struct Layers {
    layers: Vec<Layer>,
}

/// The settings from one source.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) values: Dict,
    /// For each setting, its origin: a file with a line, a variable, an option.
    pub(super) origins: BTreeMap<String, String>,
    pub(super) source: Source,
}

/// The kind of source of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The user's own file, which every launcher of this user reads.
    User,
    /// A file of this launcher, such as its workflow.
    File,
    /// Its command line, its environment, or an outer launcher.
    Run,
}

impl Layers {
    /// Adds the user's file, if there is one: `samite/config.toml` in `$XDG_CONFIG_HOME`, otherwise
    /// in `~/.config`.
    ///
    /// # Errors
    /// Those of [`Layers::file`], and [`ConfigError::Read`].
    pub fn user_file(self) -> Result<Self, ConfigError> {
        let Some(path) = user_file_path() else {
            return Ok(self);
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => self.file_of_user(&path, &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(self),
            Err(source) => Err(ConfigError::Read { path, source }),
        }
    }

    pub(super) fn file_of_user(self, path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut layers = self.file(path, text)?;
        let last = layers.layers.last_mut();
        last.into_iter()
            .for_each(|layer| layer.source = Source::User);
        Ok(layers)
    }

    /// Adds the settings of a file; `path` is used in messages only.
    ///
    /// # Errors
    /// The text is not TOML, or contains a name that is not a setting.
    pub fn file(mut self, path: &Path, text: &str) -> Result<Self, ConfigError> {
        let source = File { path, text };
        let table = source.parse()?;
        self.layers.push(source.layer(table.get_ref())?);
        Ok(self)
    }

    /// Adds the table `[config]` of a workflow file.
    ///
    /// # Errors
    /// As for [`Layers::file`].
    pub fn workflow(mut self, path: &Path, text: &str) -> Result<Self, ConfigError> {
        let source = File { path, text };
        let table = source.parse()?;
        if let Some(config) = table.get_ref().get("config") {
            let DeValue::Table(settings) = config.get_ref() else {
                let origin = source.at(config.span().start);
                return Err(ConfigError::Syntax {
                    origin,
                    message: "`config` has to be a table".into(),
                });
            };
            self.layers.push(source.layer(settings)?);
        }
        Ok(self)
    }

    /// Adds the settings that an outer launcher was given explicitly, from what it has resolved for
    /// its units (`SAMITE_CONFIG`). So a launcher that is itself a unit has the same settings.
    /// Those that only the user's file sets are left out: a workflow of the inner launcher takes
    /// precedence over them, as for any other launcher. If the text does not list the explicit
    /// settings, all that differ from the default count.
    ///
    /// # Errors
    /// As for [`Layers::file`].
    pub fn outer(self, text: &str) -> Result<Self, ConfigError> {
        let path = Path::new("SAMITE_CONFIG");
        let Shipped {
            mut settings, said, ..
        } = Shipped::parse(path, text)?;
        let default = toml::Table::try_from(Config::default()).expect("settings are tables");
        for (section, keys) in &mut settings {
            let Some(keys) = keys.as_table_mut() else {
                continue;
            };
            let default = default.get(section).and_then(toml::Value::as_table);
            keys.retain(|key, value| match (&said, value) {
                // The settings of one stream.
                (Some(said), toml::Value::Table(own)) => {
                    own.retain(|own, _| said.contains(&format!("{section}.{key}.{own}")));
                    !own.is_empty()
                }
                (Some(said), _) => said.contains(&format!("{section}.{key}")),
                (None, toml::Value::Table(_)) => true,
                (None, value) => default.and_then(|default| default.get(key)) != Some(value),
            });
        }
        let mut layers = self.file(path, &settings.to_string())?;
        if let Some(layer) = layers.layers.last_mut() {
            // Its line numbers refer to a text that no user sees.
            layer.source = Source::Run;
            let origins = layer.origins.values_mut();
            origins.for_each(|origin| *origin = "SAMITE_CONFIG".to_owned());
        }
        Ok(layers)
    }

    /// Adds the settings in this process's environment, like [`Layers::environment`]. Other
    /// variables need not be valid UTF-8.
    ///
    /// # Errors
    /// As for [`Layers::environment`]; [`ConfigError::Syntax`] if the value of a setting is not
    /// UTF-8.
    pub fn own_environment(self) -> Result<Self, ConfigError> {
        let named = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let is_setting = !is_reserved(name.strip_prefix(PREFIX)?);
            is_setting.then_some((name, value))
        });
        let text = |(name, value): (String, OsString)| match value.into_string() {
            Ok(value) => Ok((name, value)),
            Err(_) => Err(ConfigError::Syntax {
                origin: name,
                message: "its value is not UTF-8".into(),
            }),
        };
        let variables: Vec<_> = named.map(text).collect::<Result<_, _>>()?;
        self.environment(variables)
    }

    /// Adds those of `variables` that start with `SAMITE_`.
    ///
    /// # Errors
    /// A variable starts with `SAMITE_` and is neither a setting nor one of the launcher's own.
    pub fn environment(
        mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let known: Vec<(String, String)> = known_names()
            .into_iter()
            .map(|name| {
                (
                    format!("{PREFIX}{}", name.replace('.', "_").to_uppercase()),
                    name,
                )
            })
            .collect();
        let mut given = BTreeMap::new();
        for (variable, value) in variables {
            let Some(rest) = variable.strip_prefix(PREFIX) else {
                continue;
            };
            if is_reserved(rest) {
                continue;
            }
            // The one setting that users type often; it has a short name.
            let full = match rest {
                "CHECK" => "SAMITE_FABRIC_CHECK",
                _ => variable.as_str(),
            };
            match known.iter().find(|(known, _)| known == full) {
                Some((_, name)) => {
                    if let Some(earlier) = given.insert(name, variable.clone()) {
                        return Err(ConfigError::Syntax {
                            origin: variable,
                            message: format!("{earlier} sets {name} as well: unset one of them"),
                        });
                    }
                    self.layers.push(Layer::single(name, &value, variable));
                }
                None => {
                    let hint = hint(&variable, known.iter().map(|(known, _)| known.as_str()));
                    let origin = "environment".to_owned();
                    return Err(ConfigError::Unknown {
                        origin,
                        name: variable,
                        hint,
                    });
                }
            }
        }
        Ok(self)
    }

    /// Adds one setting from the command line: `fabric.deadline=2s`.
    ///
    /// # Errors
    /// It has no `=`, or there is no such setting.
    pub fn assignment(mut self, assignment: &str) -> Result<Self, ConfigError> {
        let (name, value) = assignment
            .split_once('=')
            .ok_or_else(|| ConfigError::Assignment(assignment.to_owned()))?;
        let known = known_names();
        if !is_known(name, &known) {
            let known = like(name, &known);
            return Err(ConfigError::Unknown {
                origin: "--config".to_owned(),
                name: name.to_owned(),
                hint: hint(name, known.iter().map(String::as_str)),
            });
        }
        self.layers
            .push(Layer::single(name, value, "--config".to_owned()));
        Ok(self)
    }

    /// Merges the layers.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for a value that its setting cannot have, with its origin.
    pub fn resolve(self) -> Result<Resolved, ConfigError> {
        let mut origins: BTreeMap<String, String> = known_names()
            .into_iter()
            .map(|name| (name, "default".to_owned()))
            .collect();
        let (mut merged, mut said) = (Figment::new(), BTreeSet::new());
        let mut of_run = BTreeSet::new();
        for layer in &self.layers {
            merged = merged.merge(layer);
            origins.extend(layer.origins.clone());
            // What the user's file sets applies to all launchers of this user, so it does not count
            // as explicit.
            let names = layer.origins.keys();
            if layer.source != Source::User {
                said.extend(names.clone().cloned());
            }
            match layer.source {
                Source::Run => of_run.extend(names.cloned()),
                Source::User | Source::File => names.for_each(|name| {
                    of_run.remove(name);
                }),
            }
        }
        match merged.extract() {
            Ok(config) => {
                let resolved = Resolved {
                    config,
                    origins,
                    said,
                    of_run,
                };
                resolved.check()?;
                Ok(resolved)
            }
            Err(error) => {
                let name = error.path.join(".");
                let origin = origins.get(&name).or_else(|| nested(&origins, &name));
                Err(ConfigError::Value {
                    origin: origin.cloned().unwrap_or_else(|| "settings".to_owned()),
                    message: message_of(&error.kind),
                    name,
                })
            }
        }
    }
}

/// Describes what is wrong with a value.
fn message_of(kind: &Kind) -> String {
    let Kind::UnknownVariant(found, known) = kind else {
        return kind.to_string();
    };
    let near = nearest(found, known.iter().copied());
    let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    format!("`{found}` is not one of {}{near}", known.join(", "))
}

/// The text that a launcher passes to a unit, split into settings and the rest.
pub(super) struct Shipped {
    pub(super) settings: toml::Table,
    pub(super) edges: Vec<Edge>,
    /// The settings that the launcher was given explicitly, if the text lists them.
    said: Option<BTreeSet<String>>,
}

impl Shipped {
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let wrong = |error: toml::de::Error| ConfigError::Syntax {
            origin: path.display().to_string(),
            message: error.to_string(),
        };
        let mut settings: toml::Table = toml::from_str(text).map_err(wrong)?;
        let edges = settings.remove("edge").map(toml::Value::try_into);
        let said = settings.remove(SAID).map(toml::Value::try_into);
        Ok(Shipped {
            settings,
            edges: edges.transpose().map_err(wrong)?.unwrap_or_default(),
            said: said.transpose().map_err(wrong)?,
        })
    }
}

/// The key under which a launcher passes on the names of its explicit settings.
const SAID: &str = "said";

/// Returns the origin of the setting that contains the path `path` (such as `fabric.mask.0`).
fn nested<'a>(origins: &'a BTreeMap<String, String>, path: &str) -> Option<&'a String> {
    let inside = |name: &str| {
        path.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('.'))
    };
    origins
        .iter()
        .find(|(name, _)| inside(name))
        .map(|(_, origin)| origin)
}

/// Settings with the origin of each value.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The settings.
    pub config: Config,
    origins: BTreeMap<String, String>,
    /// The settings that this launcher was given explicitly, not only by the user's file.
    said: BTreeSet<String>,
    /// The settings whose value comes from the command line or the environment.
    of_run: BTreeSet<String>,
}

impl Resolved {
    /// Like [`Config::to_toml`], for the units of a launcher: adds the names of the explicit
    /// settings, which an inner launcher takes over.
    pub fn to_units(&self) -> String {
        let said = self.said.iter();
        let said = said.map(|name| toml::Value::from(name.as_str()));
        let mut table = toml::Table::try_from(&self.config).expect("settings are tables");
        table.insert(SAID.to_owned(), toml::Value::Array(said.collect()));
        table.to_string()
    }

    /// Returns true if the command line or the environment sets this setting, which then takes
    /// precedence over a workflow file.
    pub fn is_of_this_run(&self, setting: &str) -> bool {
        self.of_run.contains(setting)
    }

    /// Returns true if more than the user's own file, which applies to all jobs of the user, sets
    /// this setting.
    pub fn is_explicit(&self, setting: &str) -> bool {
        self.said.contains(setting)
    }

    /// Returns the origin of a setting, like `fabric.deadline`.
    pub fn origin(&self, setting: &str) -> Option<&str> {
        self.origins.get(setting).map(String::as_str)
    }

    /// Iterates over the origins of the settings of this stream alone.
    pub fn origins_of_stream(&self, stream: &str) -> impl Iterator<Item = &str> {
        let own = format!("stage.{stream}");
        let is_own = move |name: &str| name.rsplit_once('.').is_some_and(|(of, _)| of == own);
        let origins = self.origins.iter();
        origins.filter_map(move |(name, origin)| is_own(name).then_some(origin.as_str()))
    }

    /// Rejects values that have the right form but are impossible.
    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |name: String, message: &str| {
            let origin = self.origins.get(&name).cloned();
            Err(ConfigError::Value {
                origin: origin.unwrap_or_else(|| "settings".to_owned()),
                message: message.to_owned(),
                name,
            })
        };
        let Config { fabric, stage, .. } = &self.config;
        if fabric.deadline.get().is_zero() {
            let message = "no wait can be that short: write a time, like \"10s\"";
            return wrong("fabric.deadline".to_owned(), message);
        }
        if fabric.nodes == 0 {
            return wrong("fabric.nodes".to_owned(), "there is at least 1 node");
        }
        let link = samite_fabric::Config {
            deadline: fabric.deadline.get(),
            mask: fabric.masked(),
            link: fabric.link.link(),
            ..samite_fabric::Config::default()
        };
        if let Err((name, message)) = link.check_link() {
            return wrong(name.to_owned(), message);
        }
        let of_streams = stage.streams.iter();
        let of_streams = of_streams.map(|(name, table)| (format!("stage.{name}"), table));
        for (section, table) in of_streams.chain([("stage".to_owned(), &stage.all)]) {
            if table.replicas == Some(0) {
                let message = "at least 1 server has to keep each block";
                return wrong(format!("{section}.replicas"), message);
            }
            if table.limit_steps.and_then(Auto::set) == Some(Steps(0)) {
                let message = "at least 1 step has to fit: write \"1 step\" or more";
                return wrong(format!("{section}.limit_steps"), message);
            }
        }
        Ok(())
    }

    /// Returns the settings as TOML with the origin of each as a comment; the text is valid input.
    pub fn to_toml_with_origin(&self) -> String {
        let text = self.config.to_toml();
        let table = DeTable::parse(&text).expect("our own output");
        let mut comments = BTreeMap::new();
        self.comment("", table.get_ref(), &mut comments);
        let width = text.lines().map(str::len).max().unwrap_or(0);
        let (mut commented, mut end) = (String::new(), 0);
        for line in text.split_inclusive('\n') {
            let written = line.trim_end_matches('\n');
            end += written.len();
            commented.push_str(written);
            // A text may have several lines; its comment is after the last one.
            if let Some(origin) = comments.get(&end) {
                commented.push_str(&format!("{:1$}  # {origin}", "", width - written.len()));
            }
            end += line.len() - written.len();
            commented.push_str(&line[written.len()..]);
        }
        commented
    }

    /// Adds the origins of the settings in `table`, each with the offset at which its value ends.
    fn comment<'a>(
        &'a self,
        section: &str,
        table: &DeTable<'_>,
        comments: &mut BTreeMap<usize, &'a str>,
    ) {
        for (key, value) in table {
            let name = format!("{section}{}", key.get_ref());
            if let DeValue::Table(keys) = value.get_ref() {
                self.comment(&format!("{name}."), keys, comments);
            } else if let Some(origin) = self.origins.get(&name) {
                comments.insert(value.span().end, origin);
            }
        }
    }
}

impl Layer {
    fn single(name: &str, value: &str, origin: String) -> Self {
        let layer = |value| Self {
            values: in_section(name, value),
            origins: BTreeMap::from([(name.to_owned(), origin.clone())]),
            source: Source::Run,
        };
        let fits = |layer: &Self| Figment::from(layer).extract::<Config>().is_ok();
        let parsed = layer(value.parse().expect("any text is a value"));
        // A folder may be called 2024, and a text may look like a list.
        let text = layer(Value::from(value));
        if !fits(&parsed) && fits(&text) {
            text
        } else {
            parsed
        }
    }
}

/// Returns the tables around the value of a setting. The name of a stream may contain dots.
fn in_section(name: &str, value: Value) -> Dict {
    let (section, key) = name.split_once('.').expect("settings are in sections");
    let setting = match key.rsplit_once('.') {
        Some((stream, key)) => (
            stream.to_owned(),
            Dict::from([(key.to_owned(), value)]).into(),
        ),
        None => (key.to_owned(), value),
    };
    Dict::from([(section.to_owned(), Dict::from([setting]).into())])
}

impl Provider for &Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named("settings")
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}

fn user_file_path() -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_CONFIG_HOME").filter(|folder| !folder.is_empty());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
    folder
        .map(PathBuf::from)
        .or_else(home)
        .map(|folder| folder.join("samite/config.toml"))
}
