//! Conditions of arguments: `{ when = "{plot}", args = ["--plot"] }`.

/// Returns whether a condition holds, after parameters were filled in: two texts around `==` or
/// `!=`, or one text, which means yes unless it is empty, `false`, `no`, `off` or `0`.
pub(super) fn holds(text: &str) -> bool {
    let compare = |(left, right): (&str, &str)| left.trim() == right.trim();
    if let Some(sides) = text.split_once("!=") {
        return !compare(sides);
    }
    match text.split_once("==") {
        Some(sides) => compare(sides),
        None => !["", "false", "no", "off", "0"].contains(&text.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions() {
        for yes in ["true", "out.html", "1", "cg == cg", "a != b", "a==a"] {
            assert!(holds(yes), "{yes}");
        }
        for no in ["", "false", "0", " no ", "cg == jacobi", "a!=a"] {
            assert!(!holds(no), "{no}");
        }
    }
}
