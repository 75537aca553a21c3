// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! Authorization
//!
//! See [sigv4-auth-using-authorization-header](https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-auth-using-authorization-header.html)
//!

use crate::crypto::is_sha256_checksum;
use serde::{Deserialize, Serialize};

/// Authorization
#[derive(Debug, Serialize, Deserialize)]
pub struct AuthorizationV4<'a> {
    /// The algorithm that was used to calculate the signature.
    pub algorithm: &'a str,

    /// Access key ID and the scope information, which includes the date, Region, and service that were used to calculate the signature.
    pub credential: CredentialV4<'a>,

    /// A semicolon-separated list of request headers that you used to compute `Signature`.
    pub signed_headers: Vec<&'a str>,

    /// The 256-bit signature expressed as 64 lowercase hexadecimal characters.
    pub signature: &'a str,
}

/// Access key ID and the scope information, which includes the date, Region, and service that were used to calculate the signature.
///
/// This string has the following form:
/// `<your-access-key-id>/<date>/<aws-region>/<aws-service>/aws4_request`
///
/// See [sigv4-auth-using-authorization-header](https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-auth-using-authorization-header.html)
#[derive(Debug, Serialize, Deserialize)]
pub struct CredentialV4<'a> {
    /// access key id
    pub access_key_id: &'a str,
    /// \<date\> value is specified using YYYYMMDD format.
    pub date: &'a str,
    /// region
    pub aws_region: &'a str,
    /// \<aws-service\> value is `s3` when sending request to Amazon S3.
    pub aws_service: &'a str,
}

/// [`AuthorizationV4`]
#[derive(Debug, thiserror::Error)]
pub enum ParseAuthorizationError {
    /// The header does not match the `Authorization` header structure.
    #[error("ParseAuthorizationError: malformed authorization header")]
    Malformed,
    /// The `Signature=` value is not a canonical lowercase hex SHA-256 digest.
    #[error("ParseAuthorizationError: invalid signature format")]
    InvalidSignature,
}

/// [`CredentialV4`]
#[derive(Debug, thiserror::Error)]
#[error("ParseAuthorizationError")]
pub struct ParseCredentialError {
    /// private placeholder
    _priv: (),
}

impl<'a> CredentialV4<'a> {
    /// Parses a credential scope string of the form
    /// `<access-key-id>/<date>/<aws-region>/<aws-service>/aws4_request`.
    ///
    /// # Errors
    /// Returns [`ParseCredentialError`] when the string does not match.
    pub fn parse(input: &'a str) -> Result<Self, ParseCredentialError> {
        match parser::parse_credential(input) {
            Ok(("", ans)) => Ok(ans),
            Ok(_) | Err(_) => Err(ParseCredentialError { _priv: () }),
        }
    }
}

impl<'a> AuthorizationV4<'a> {
    /// Parses `AuthorizationV4` from `Authorization` header
    /// # Errors
    /// Returns an `Err` if the header is invalid
    pub fn parse(header: &'a str) -> Result<Self, ParseAuthorizationError> {
        let Ok(("", ans)) = parser::parse_authorization(header) else {
            return Err(ParseAuthorizationError::Malformed);
        };

        // Validate the signature segment eagerly so callers can distinguish a
        // malformed header from a syntactically invalid signature.
        if !is_sha256_checksum(ans.signature) {
            return Err(ParseAuthorizationError::InvalidSignature);
        }

        Ok(ans)
    }
}

mod parser {
    use super::*;

    use crate::parser::{Error, digit2, digit4};

    use nom::IResult;
    use nom::Parser;
    use nom::bytes::complete::{tag, take, take_till, take_till1};
    use nom::character::complete::{multispace0, multispace1};
    use nom::combinator::verify;
    use nom::multi::separated_list1;
    use nom::sequence::{delimited, preceded, terminated};

    fn consume<I, O, F>(input: &mut I, f: F) -> Result<O, nom::Err<nom::error::Error<I>>>
    where
        F: FnOnce(I) -> nom::IResult<I, O>,
        I: Copy,
    {
        let (remaining, output) = f(*input)?;
        *input = remaining;
        Ok(output)
    }

    pub fn parse_authorization(mut input: &str) -> IResult<&str, AuthorizationV4<'_>> {
        let s = &mut input;

        let algorithm = consume(s, till_space1)?;

        consume(s, multispace1)?;
        let credential = consume(s, |i| delimited(tag("Credential="), parse_credential, tag(",")).parse(i))?;

        consume(s, multispace0)?;
        let parse_headers = separated_list1(tag(";"), take_till(|c| c == ';' || c == ','));
        let signed_headers = consume(s, |i| delimited(tag("SignedHeaders="), parse_headers, tag(",")).parse(i))?;

        consume(s, multispace0)?;
        let signature = consume(s, |i| preceded(tag("Signature="), till_space0).parse(i))?;

        consume(s, multispace0)?;

        let ans = AuthorizationV4 {
            algorithm,
            credential,
            signed_headers,
            signature,
        };

        Ok((input, ans))
    }

    fn till_space0(input: &str) -> IResult<&str, &str> {
        take_till(|c: char| c.is_ascii_whitespace())(input)
    }

    fn till_space1(input: &str) -> IResult<&str, &str> {
        take_till1(|c: char| c.is_ascii_whitespace())(input)
    }

    pub fn parse_credential(mut input: &str) -> IResult<&str, CredentialV4<'_>> {
        let s = &mut input;

        let access_key_id = consume(s, until_slash0)?;
        let date = consume(s, |i| verify(until_slash1, |s| verify_date(s).is_ok()).parse(i))?;
        let aws_region = consume(s, until_slash0)?;
        let aws_service = consume(s, until_slash1)?;
        consume(s, tag("aws4_request"))?;

        let ans = CredentialV4 {
            access_key_id,
            date,
            aws_region,
            aws_service,
        };

        Ok((input, ans))
    }

    fn until_slash0(input: &str) -> IResult<&str, &str> {
        terminated(take_till(|c| c == '/'), take(1_usize)).parse(input)
    }

    fn until_slash1(input: &str) -> IResult<&str, &str> {
        terminated(take_till1(|c| c == '/'), take(1_usize)).parse(input)
    }

    fn verify_date(s: &str) -> Result<(), Error> {
        let x: &[u8; 8] = s.as_bytes().try_into().map_err(|_| Error)?;

        let yyyy = digit4([x[0], x[1], x[2], x[3]])?;
        let mm = digit2([x[4], x[5]])?;
        let dd = digit2([x[6], x[7]])?;

        let yyyy = i16::try_from(yyyy).map_err(|_| Error)?;
        let mm = i8::try_from(mm).map_err(|_| Error)?;
        let dd = i8::try_from(dd).map_err(|_| Error)?;
        match jiff::civil::Date::new(yyyy, mm, dd) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error),
        }
    }
}
