//! Calls of a front end that are no requests, such as `reset_prefix_cache`.

use crate::{MessageError, msgpack::MsgpackValue};

/// A call, to which exactly one answer belongs: a front end waits for it without an end.
#[derive(Debug, Clone, PartialEq)]
pub struct UtilityCall {
    /// The client that waits.
    pub client_index: usize,
    /// Its number; those of Python use all 64 bits.
    pub call_id: MsgpackValue,
    /// Name of a method of `EngineCore`.
    pub method: String,
    /// Its arguments.
    pub args: Vec<MsgpackValue>,
}

impl UtilityCall {
    /// Reads the frame after the type.
    ///
    /// # Errors
    /// Where it is no such call.
    pub fn read(bytes: &[u8]) -> Result<Self, MessageError> {
        let message = "utility call";
        let value = MsgpackValue::read(bytes).map_err(|source| MessageError::Msgpack(message, source))?;
        let wrong = |field, wanted| MessageError::Field { message, field, wanted };
        let Some([client, call_id, method, rest @ ..]) = value.as_array() else {
            return Err(wrong("length", "a list of client, number, method and arguments"));
        };
        let client = client.as_u64().and_then(|client| usize::try_from(client).ok());
        Ok(Self {
            client_index: client.ok_or(wrong("client_index", "a whole number"))?,
            call_id: call_id.clone(),
            method: method.as_str().ok_or(wrong("method", "a text"))?.to_owned(),
            args: rest.first().and_then(MsgpackValue::as_array).unwrap_or_default().to_vec(),
        })
    }

    /// `UtilityOutput`: its result, or why there is none.
    #[must_use]
    pub fn output(&self, result: Result<MsgpackValue, String>) -> MsgpackValue {
        let (failure, result) = match result {
            Ok(result) => (MsgpackValue::Nil, MsgpackValue::Array(vec![MsgpackValue::Nil, result])),
            Err(reason) => {
                let failure = format!("Call to {} method failed: {reason}", self.method);
                (failure.as_str().into(), MsgpackValue::Nil)
            }
        };
        MsgpackValue::Array(vec![self.call_id.clone(), failure, result])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_and_answered_by_their_number() {
        let bytes =
            [b"\x94\x00\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xb2reset_prefix_cache\x92\xc2\xc3".as_slice()].concat();
        let call = UtilityCall::read(&bytes).unwrap();
        assert_eq!((call.client_index, call.method.as_str(), call.args.len()), (0, "reset_prefix_cache", 2));
        let answer = call.output(Ok(true.into())).to_bytes();
        assert_eq!(answer, b"\x93\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xc0\x92\xc0\xc3");
        let failed = call.output(Err("why".to_owned()));
        assert_eq!(failed.as_array().unwrap()[1].as_str(), Some("Call to reset_prefix_cache method failed: why"));
        for wrong in [&b"\x93\xc0\x01\xa1x"[..], b"\x93\x00\x01\x02", b"\x90", b"\xc1"] {
            assert!(UtilityCall::read(wrong).is_err());
        }
    }
}
