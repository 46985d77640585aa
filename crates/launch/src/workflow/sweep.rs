//! `[sweep]`: a run for each combination of values, in a folder of its own.
//!
//! ```toml
//! [sweep]
//! size = [512, 1024]
//! method = ["jacobi", "cg"]
//! folder = "sweep/{method}-{size}"  # default: sweep/ and the values
//! ```

use super::Workflow;
use super::parameter::Value;
use crate::error::Error;
use crate::parameters::fill_in;
use crate::source::suggestion;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use toml::Spanned;

/// The maximum number of runs. All are made before the first one starts.
const MOST_RUNS: usize = 10_000;
/// The key that is not a parameter.
const FOLDER: &str = "folder";

/// The value of a key.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "write a list of values, or for `folder` a text")]
pub(super) enum Entry {
    Values(Vec<Value>),
    Folder(String),
}

/// One run of a sweep.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its values, as `size = 512, method = cg`; empty if the file has no sweep.
    pub label: String,
    /// The folder in which its units run.
    pub folder: Option<PathBuf>,
    /// The workflow with these values.
    pub workflow: Workflow,
}

impl Workflow {
    /// Returns the runs of the workflow: one for each combination of the values in `[sweep]`, of
    /// parameters that were not set. Without a sweep it is the workflow itself.
    ///
    /// # Errors
    /// [`Error::Workflow`]: a key of the sweep is not a parameter, a value does not fit, two runs
    /// have the same folder, or there are too many.
    pub fn runs(&self) -> Result<Vec<Run>, Error> {
        let mut runs = vec![Run {
            label: String::new(),
            folder: None,
            workflow: self.clone(),
        }];
        if self.file.sweep.is_empty() {
            return Ok(runs);
        }
        let mut pattern = None;
        let mut names: Vec<&str> = Vec::new();
        for (key, entry) in &self.file.sweep {
            let name = key.get_ref().as_str();
            match entry {
                Entry::Folder(text) if name == FOLDER => {
                    pattern = Some(Spanned::new(key.span(), text.clone()));
                }
                Entry::Values(values) if name != FOLDER => {
                    self.check_axis(key, values)?;
                    names.push(name);
                    // A value that the run sets is the only one.
                    let value = self.values.get(name).filter(|_| self.given.contains(name));
                    let one = value.map(|value| vec![Value::Text(value.clone())]);
                    let values = one.as_ref().unwrap_or(values);
                    if runs.len().saturating_mul(values.len()) > MOST_RUNS {
                        let message = format!(
                            "[sweep]: with the values of `{name}` there are more than {MOST_RUNS} combinations; leave out some, or set a parameter on the command line"
                        );
                        return Err(self.source.error(key.span(), message));
                    }
                    runs = runs.iter().flat_map(|run| run.with(name, values)).collect();
                }
                _ => {
                    let message = "write a list of values, or for `folder` a text";
                    return Err(self.source.error(key.span(), message));
                }
            }
        }
        let own = names.iter().map(|name| format!("{{{name}}}"));
        let own = format!("sweep/{}", own.collect::<Vec<_>>().join("-"));
        let pattern = pattern.unwrap_or_else(|| Spanned::new(0..0, own));
        let mut taken: BTreeSet<PathBuf> = BTreeSet::new();
        for run in &mut runs {
            let folder = fill_in(pattern.get_ref(), &run.workflow.values)
                .map_err(|message| self.source.error(pattern.span(), message))?;
            let folder = self.folder().join(folder);
            if taken.contains(&folder) {
                let message = format!(
                    "two runs of the sweep have the folder {}: use all of its parameters in `folder`",
                    folder.display()
                );
                return Err(self.source.error(pattern.span(), message));
            }
            taken.insert(folder.clone());
            run.workflow.run_folder = Some(folder.clone());
            run.folder = Some(folder);
        }
        Ok(runs)
    }

    fn check_axis(&self, key: &Spanned<String>, values: &[Value]) -> Result<(), Error> {
        let name = key.get_ref();
        let error = |message: String| self.source.error(key.span(), message);
        let Some(declared) = self.declared(name) else {
            let names = self.file.parameters.keys();
            let known: Vec<&str> = names.map(|name| name.get_ref().as_str()).collect();
            let hint = suggestion(name, &known);
            return Err(error(format!(
                "[sweep]: there is no parameter `{name}`{hint}"
            )));
        };
        if values.is_empty() {
            return Err(error(format!("[sweep]: `{name}` has no values")));
        }
        let mut values = values.iter().map(Value::text);
        values
            .try_for_each(|value| declared.check(name, &value))
            .map_err(error)
    }
}

impl Run {
    /// Returns a run for each value of a parameter.
    fn with(&self, name: &str, values: &[Value]) -> Vec<Run> {
        let run = |value: &Value| {
            let (mut run, value) = (self.clone(), value.text());
            let comma = if run.label.is_empty() { "" } else { ", " };
            run.label += &format!("{comma}{name} = {value}");
            run.workflow.values.insert(name.to_owned(), value);
            run
        };
        values.iter().map(run).collect()
    }
}
