"""`error-recovery`: mends the request after the provider refused it."""

from pydantic import Field

from procession import APIErrorArgs, APIErrorResult, Options, Processor


class ErrorRecoveryOptions(Options):
    """Options of `error-recovery`."""

    drop: int = Field(default=2, ge=1, description="Messages removed behind the first one.")
    keep: int = Field(default=4, ge=1, description="A conversation with no more messages is left alone.")


class ErrorRecovery(Processor[ErrorRecoveryOptions]):
    """Shortens a conversation that is too long for the model, once."""

    id = "error-recovery"
    description = "Shortens a conversation that is too long for the model, and tries again."

    def process_api_error(self, args: APIErrorArgs) -> APIErrorResult | None:
        """Removes old messages; the retried step is called with what is left."""
        too_long = args.error.name == "APICallError" and "context length exceeded" in args.error.message
        if args.retry_count > 0 or not too_long:
            return None
        messages = args.message_list.get.all.db()
        if len(messages) <= self.options.keep:
            return None
        args.message_list.remove_by_ids([m["id"] for m in messages[1 : 1 + self.options.drop]])
        return {"retry": True}
