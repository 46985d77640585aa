//! Whole numbers that are computed in a workflow: `4 * {cells}^3`.

use exmex::{BinOp, Express, FlatEx, MakeOperators, Operator};

/// The operators, with the usual precedence. Results beyond 128 bits saturate, far above any
/// accepted number. This detects every overflow of a sum that only grows, but not one that is
/// reduced afterwards.
#[derive(Clone, Debug)]
struct Arithmetic;

impl MakeOperators<i128> for Arithmetic {
    fn make<'a>() -> Vec<Operator<'a, i128>> {
        let operator = |name, prio, apply: fn(i128, i128) -> i128| {
            let operation = BinOp {
                apply,
                prio,
                is_commutative: false,
            };
            Operator::make_bin(name, operation)
        };
        vec![
            operator("+", 0, |a, b| a.saturating_add(b)),
            operator("-", 0, |a, b| a.saturating_sub(b)),
            operator("*", 1, |a, b| a.saturating_mul(b)),
            operator("/", 1, |a, b| a.checked_div(b).unwrap_or(i128::MAX)),
            operator("^", 2, |a, b| {
                u32::try_from(b).map_or(i128::MAX, |b| a.saturating_pow(b))
            }),
        ]
    }
}

/// Evaluates whole numbers with `+ - * / ^` and parentheses; `/` rounds down. `true` is 1 and
/// `false` is 0, so that a switch can be part of a sum.
///
/// # Errors
/// A message if the text is not such an expression, or its value is negative or has more than 63
/// bits.
pub(super) fn number(text: &str) -> Result<u64, String> {
    let form = "write whole numbers with + - * / ^ and parentheses";
    let no_number = |why: String| format!("`{text}` is not a valid number ({why}): {form}");
    // In parentheses, so that they do not become additional digits of an adjacent number.
    let plain = text.replace("true", "(1)").replace("false", "(0)");
    let parsed = FlatEx::<i128, Arithmetic>::parse(&plain);
    // The parser's own message is about operators and brackets beyond these.
    let value = parsed
        .and_then(|sum| sum.eval(&[]))
        .map_err(|_| format!("`{text}` is not a number: {form}"))?;
    match value {
        ..0 => Err(no_number("it is negative".into())),
        // The same limit as for whole numbers in a configuration.
        _ if value > i128::from(i64::MAX) => Err(no_number("it has more than 63 bits".into())),
        _ => Ok(value as u64),
    }
}

/// Evaluates numbers separated by commas.
///
/// # Errors
/// As for [`number`].
pub(super) fn numbers(text: &str) -> Result<Vec<u64>, String> {
    text.split(',').map(|part| number(part.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_worked_out_as_at_school() {
        for (text, value) in [
            ("12", 12),
            ("4 * 20^3", 32_000),
            ("2 + 3 * 4", 14),
            ("(2 + 3) * 4", 20),
            ("10 - 3 - 2", 5),
            ("100 / 8 / 2", 6),
            ("4 + true * 3", 7),
            ("4 + false * 3", 4),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(number(text), Ok(value), "{text}");
        }
        assert_eq!(numbers("2048, 3*4"), Ok(vec![2048, 12]));
    }

    #[test]
    fn what_is_no_number_is_said() {
        for text in [
            "", "x", "4 *", "-5", "3 - 4", "2^63", "10^40", "1 / 0", "1.5", "2^(0-1)", "1true",
            "true1", "truetrue", "True",
        ] {
            let error = number(text).expect_err(text);
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
        assert!(numbers("4,,4").is_err());
    }
}
