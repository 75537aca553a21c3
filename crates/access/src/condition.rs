//! A condition of a statement.

use crate::document::Scalar;
use crate::fact::{Fact, Facts};
use crate::operator::{Operand, Operator};

/// How a condition treats a fact with several values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quantifier {
    /// No quantifier is named.
    Plain,
    /// `ForAnyValue:`: one value at least.
    Any,
    /// `ForAllValues:`: each value, or there is none.
    All,
}

/// One operator, one fact and the values that it is tested against.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PolicyCondition {
    quantifier: Quantifier,
    operator: Operator,
    negated: bool,
    /// Holds for a request without the fact.
    if_exists: bool,
    fact: Fact,
    operands: Vec<Operand>,
}

impl PolicyCondition {
    /// # Errors
    /// An operator, fact or value that is unknown, in words.
    pub(crate) fn parse(operator: &str, fact: &str, values: &[Scalar], variables: bool) -> Result<Self, String> {
        let (quantifier, name) = match operator.split_once(':') {
            Some(("ForAnyValue", name)) => (Quantifier::Any, name),
            Some(("ForAllValues", name)) => (Quantifier::All, name),
            _ => (Quantifier::Plain, operator),
        };
        let (name, if_exists) = name.strip_suffix("IfExists").map_or((name, false), |name| (name, true));
        let unknown = || format!("invalid condition operator {operator:?}");
        let (known, negated) = Operator::parse(name).ok_or_else(unknown)?;
        if known == Operator::Null && (if_exists || quantifier != Quantifier::Plain) {
            return Err(unknown());
        }
        let fact = Fact::parse(fact).ok_or_else(|| format!("invalid condition key {fact:?}"))?;
        let operands: Result<Vec<Operand>, String> =
            values.iter().map(|Scalar(value)| known.operand(value, variables)).collect();
        let operands = operands.map_err(|why| format!("condition {operator:?}: {why}"))?;
        if operands.is_empty() {
            return Err(format!("condition {operator:?} has no value"));
        }
        Ok(Self { quantifier, operator: known, negated, if_exists, fact, operands })
    }

    /// Whether it holds for the request.
    pub(crate) fn holds(&self, facts: &dyn Facts) -> bool {
        let values = facts.values(&self.fact);
        if self.operator == Operator::Null {
            return self.operands.contains(&Operand::Bool(values.is_empty()));
        }
        if values.is_empty() {
            return self.if_exists
                || match self.quantifier {
                    Quantifier::Plain => self.negated,
                    Quantifier::Any => false,
                    Quantifier::All => true,
                };
        }
        let holds = |value: &str| {
            let any = self.operands.iter().any(|operand| self.operator.holds(value, operand, facts));
            any != self.negated
        };
        let mut values = values.iter();
        match (self.quantifier, self.negated) {
            (Quantifier::Any, _) | (Quantifier::Plain, false) => values.any(|value| holds(value)),
            (Quantifier::All, _) | (Quantifier::Plain, true) => values.all(|value| holds(value)),
        }
    }

    /// Whether it admits only what the policy lists: then a statement that allows everyone is not
    /// public.
    pub(crate) fn limits_everyone(&self) -> bool {
        let is_fixed = matches!(self.fact, Fact::SourceIp | Fact::Username | Fact::UserId | Fact::PrincipalArn);
        let is_everywhere = |operand: &Operand| {
            matches!(operand, Operand::Network(_, 0))
                || matches!(operand, Operand::Text(text) if text.beginning().is_empty())
        };
        is_fixed
            && !self.negated
            && !self.if_exists
            && self.quantifier != Quantifier::All
            && self.operator != Operator::Null
            && !self.operands.iter().any(is_everywhere)
    }
}
