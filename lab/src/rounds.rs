//! What is compared is measured by turns, so that all of it meets the same noise, and told by its median.

/// One measurement of one of those that are compared.
pub(crate) type Measurement<'a, F, E> = &'a mut dyn FnMut() -> Result<F, E>;

/// Measures each of `compared` once in every round. Returns the figures of each, in the order of the rounds.
pub(crate) fn by_turns<const N: usize, F, E>(
    rounds: usize,
    mut compared: [Measurement<'_, F, E>; N],
) -> Result<[Vec<F>; N], E> {
    let mut figures = [const { Vec::new() }; N];
    for _ in 0..rounds {
        for (measure, figures) in compared.iter_mut().zip(&mut figures) {
            figures.push(measure()?);
        }
    }
    Ok(figures)
}

/// The median: the middle value, or the mean of the two in the middle. `None` if there are no values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    match values.len().is_multiple_of(2) {
        true => Some((values[middle - 1] + upper) / 2.0),
        false => Some(upper),
    }
}

/// The median of a figure over all rounds, of which there is at least one.
pub(crate) fn median_of<F>(rounds: &[F], figure: impl Fn(&F) -> f64) -> f64 {
    median(rounds.iter().map(figure)).expect("there is a round")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_measured_once_in_every_round_and_a_failure_ends_it() {
        let mut order = std::cell::RefCell::new(Vec::new());
        let turn = |name: &'static str| {
            order.borrow_mut().push(name);
            if order.borrow().len() < 5 { Ok(order.borrow().len()) } else { Err(name) }
        };
        let [a, b] = by_turns(2, [&mut || turn("a"), &mut || turn("b")]).unwrap();
        assert_eq!((a, b), (vec![1, 3], vec![2, 4]));
        assert_eq!(by_turns(1, [&mut || turn("c")]), Err("c"));
        assert_eq!(*order.get_mut(), ["a", "b", "a", "b", "c"]);
    }

    #[test]
    fn a_median_lies_in_the_middle() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }
}
