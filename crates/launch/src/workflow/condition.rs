//! Conditions of arguments: `{ when = "{plot}", args = ["--plot"] }`.

/// Returns whether a condition holds: two texts around `==` or `!=`, or one text, which holds
/// unless it is empty, `false`, `no`, `off` or `0`. `fill` fills in parameters, on each side by
/// itself: the operators are those of the condition, and values may contain any characters.
pub(super) fn holds<E>(text: &str, fill: impl Fn(&str) -> Result<String, E>) -> Result<bool, E> {
    let is_same = |(left, right)| Ok(fill(left)?.trim() == fill(right)?.trim());
    if let Some(sides) = text.split_once("!=") {
        return is_same(sides).map(|is_same| !is_same);
    }
    match text.split_once("==") {
        Some(sides) => is_same(sides),
        None => Ok(!["", "false", "no", "off", "0"].contains(&fill(text)?.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions() {
        let fill = |text: &str| Ok::<_, ()>(text.replace("{url}", "h?a==b&c!=d"));
        let holds = |text: &str| holds(text, fill) == Ok(true);
        for yes in [
            "true",
            "out.html",
            "1",
            "cg == cg",
            "a != b",
            "a==a",
            "{url}",
            "{url} != x",
            "{url} == {url}",
        ] {
            assert!(holds(yes), "{yes}");
        }
        for no in [
            "",
            "false",
            "0",
            " no ",
            "cg == jacobi",
            "a!=a",
            "{url} == x",
        ] {
            assert!(!holds(no), "{no}");
        }
    }
}
