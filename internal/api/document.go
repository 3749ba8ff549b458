package api

import (
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"gpubroker/internal/gpu"
	"gpubroker/internal/reason"
	"gpubroker/internal/scenario"
)

// reasonDoc is a reason as it is written.
type reasonDoc struct {
	Code string            `json:"code" doc:"stable, lower case"`
	Args map[string]string `json:"args,omitempty" doc:"numbers and names of the sentence"`
	Text string            `json:"text" doc:"the sentence, in English"`
}

// describe tells the document how types are written that write themselves.
func describe(r huma.Registry) {
	as := func(t, form reflect.Type) { r.RegisterTypeAlias(t, form) }
	as(reflect.TypeFor[reason.Reason](), reflect.TypeFor[reasonDoc]())
	as(reflect.TypeFor[gpu.Known[float64]](), reflect.TypeFor[*float64]())
	as(reflect.TypeFor[gpu.Known[int]](), reflect.TypeFor[*int]())
	as(reflect.TypeFor[gpu.Known[bool]](), reflect.TypeFor[*bool]())
	as(reflect.TypeFor[gpu.Known[string]](), reflect.TypeFor[*string]())
	as(reflect.TypeFor[scenario.Requirements](), reflect.TypeFor[map[string]any]())
}

// Document returns the OpenAPI 3.1 document as YAML.
func (s *Server) Document() ([]byte, error) { return s.api.OpenAPI().YAML() }
