//! The names of the settings, and the nearest name to a misspelt one.

use super::Config;

/// Returns `section.key` of every setting, or `section.group.key`.
pub(super) fn known_names() -> Vec<String> {
    let table = toml::Table::try_from(Config::default()).expect("settings are tables");
    table
        .iter()
        .flat_map(|(section, keys)| names_in(section, keys))
        .collect()
}

fn names_in(path: &str, value: &toml::Value) -> Vec<String> {
    let Some(keys) = value.as_table() else {
        return vec![path.to_owned()];
    };
    let inner = keys.iter();
    inner
        .flat_map(|(key, value)| names_in(&format!("{path}.{key}"), value))
        .collect()
}

/// Returns true if there is such a setting, of all streams or of one.
pub(super) fn is_known(name: &str, known: &[String]) -> bool {
    let of_one = || {
        let (stream, key) = name.strip_prefix("stage.")?.rsplit_once('.')?;
        (!stream.is_empty()).then(|| format!("stage.{key}"))
    };
    let has = |name: &str| known.iter().any(|known| known == name);
    has(name) || of_one().is_some_and(|general| has(&general))
}

/// Returns the names that a misspelt one may mean: for a setting of one stream, those of that
/// stream.
pub(super) fn like(name: &str, known: &[String]) -> Vec<String> {
    let of_one = name
        .strip_prefix("stage.")
        .and_then(|rest| rest.rsplit_once('.'));
    let Some((stream, _)) = of_one else {
        return known.to_vec();
    };
    let keys = known.iter().filter_map(|name| name.strip_prefix("stage."));
    keys.map(|key| format!("stage.{stream}.{key}")).collect()
}

pub(super) fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(name, known).map_or(
        "; `samite config show` prints all settings".to_owned(),
        |near| format!("; did you mean `{near}`?"),
    )
}

pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(2);
    known
        .map(|known| (strsim::damerau_levenshtein(name, known), known))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, near)| near)
}
